"""Writing a model as a Hugging Face folder, which `load` and transformers read."""

import os
from typing import Any

from jaxspec.checkpoints.folder import config_of, save_head_folder
from jaxspec.families.config import transformer_config
from jaxspec.families.params import param_mappings
from jaxspec.nn.language_model import LanguageModel

_REFUSED = "only models of the Llama family are written as such a folder, got {}; use jaxspec.save"


def write_llama(model: LanguageModel, path: str | os.PathLike[str]) -> None:
    """Writes a model of the Llama family in bfloat16, with its tokenizer; the folder appears whole or not at all.

    Args:
      model: without biases, windows or other things that a Llama has not.
      path: the folder to make; it must not exist.

    Raises:
      ValueError: the model is no Llama.
      FileExistsError: the folder exists.
    """
    config = model.module.config
    if config.learned_positions:
        raise ValueError(_REFUSED.format(config))
    values: dict[str, Any] = config_of(config) | {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tied_head,
    }
    if transformer_config(values) != config:
        raise ValueError(_REFUSED.format(config))
    tensors = {name: x for one in param_mappings(config, "llama") for name, x in one.take_apart(model.params).items()}
    prefixed = {name if name == "lm_head.weight" else f"model.{name}": x for name, x in tensors.items()}
    save_head_folder(path, values, prefixed, model.tokenizer)
