"""Lists public formats of heads that are recognized and not read: most are for targets that jaxspec does not run yet.

A head of one of these would otherwise be taken for another kind, or fail with an error about something else.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

Recognizes = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]


def refused(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> str | None:
    """Returns which unsupported format a folder has, and why it is not read; `None` if it has none of them.

    Args:
      config: the contents of its `config.json`.
      tensors: its tensors by name.
    """
    return next((reason for reason, recognizes in _FORMATS.items() if recognizes(config, tensors)), None)


def _named(pattern: str) -> Recognizes:
    """Recognizes the type of a model, or one of its architectures."""
    expected = re.compile(pattern)
    return lambda config, _: any(
        expected.search(str(name)) for name in (config.get("model_type"), *(config.get("architectures") or ()))
    )


def _set(pattern: str) -> Recognizes:
    """Recognizes a setting, also inside `dflash_config`."""
    expected = re.compile(pattern)
    return lambda config, _: any(expected.match(key) for key in (*config, *(config.get("dflash_config") or ())))


def _stored(pattern: str) -> Recognizes:
    """Recognizes the name of a tensor."""
    expected = re.compile(pattern)
    return lambda _, tensors: any(expected.match(name) for name in tensors)


_TARGET = "is for targets that jaxspec does not run"
_FORMATS: Mapping[str, Recognizes] = {
    f"a Gemma 4 assistant, which {_TARGET}": _named(r"^gemma4.*_assistant|^Gemma4.*Assistant"),
    f"a DSpark or EAGLE-3 head for Gemma 4, which {_TARGET}": _named(r"^Gemma4(DSpark|Eagle3|DFlash)"),
    f"a Muse Glimmer assistant, which {_TARGET}": _named(r"^muse_glimmer|^MuseGlimmer"),
    f"DSpark inside a DeepSeek-V4 checkpoint, which {_TARGET}": _set(r"dspark_(?!noise_token_id)"),
    f"an EAGLE-3 head with latent attention, which {_TARGET}": _named(r"^Eagle3Deepseek"),
    f"a multi-token prediction module of Qwen3-Next, Qwen3.5 or DeepSeek-V4 (mtp.*), which {_TARGET}": _stored(
        r"mtp\."
    ),
    f"a multi-token prediction module of MiMo, which {_TARGET}": _stored(r"model\.(mtp_layers|mtp\.layers)\."),
    "a LiLiCorr head, of whose network no public description suffices to read it": _set(r"lilicorr_"),
    "a Hydra head, which is not supported": _set(r"hydra_"),
    "a DFlash head with fused products or norms of each state (Laguna), which is not supported": _stored(
        r"(aux_hidden_norms|layers\.0\.self_attn\.(qkv_proj|g_proj))\."
    ),
}
