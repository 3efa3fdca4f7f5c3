"""What the benchmarks run on: the default model, a prompt, and a cheap draft of the same shape."""

import dataclasses
import platform

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.timing import show
from jaxspec.model import LanguageModel

PROMPT = "Write a Python function that merges two sorted lists, and explain each step of it."


def chat_prompt(model: LanguageModel, text: str = PROMPT) -> np.ndarray:
    """A chat turn as `[1, t]` token ids."""
    return np.asarray([model.tokenizer.apply_chat_template([{"role": "user", "content": text}])], np.int32)


def first_layers(model: LanguageModel, count: int) -> LanguageModel:
    """The model's first layers with its own head: a draft that costs less and guesses little."""
    config = model.module.config
    shorter = dataclasses.replace(config, num_layers=count, ropes=config.ropes[:count], windows=config.windows[:count])
    dropped = {f"layer_{index}" for index in range(count, config.num_layers)}
    params = {name: value for name, value in model.params.items() if name not in dropped}
    return dataclasses.replace(model, module=model.module.clone(config=shorter), params=params)


def filled_cache(model: LanguageModel, capacity: int, used: int):
    """A cache that holds `used` tokens of nothing in particular."""
    return model.init_cache(1, capacity).truncate(jnp.full(1, used, jnp.int32))


def weight_bytes(model: LanguageModel) -> int:
    """Bytes of weights that one decoding step reads; of an untied embedding it reads one row."""
    unread = 0 if model.module.config.tied_head else model.params["embedding"].nbytes
    return sum(x.nbytes for x in jax.tree.leaves(model.params)) - unread


def show_machine() -> None:
    """Prints device and versions: a figure means nothing without them."""
    device = jax.devices()[0]
    show("device", f"{device.platform} {device.device_kind} x {jax.device_count()}, {platform.machine()}")
    show("jax, python", f"{jax.__version__}, {platform.python_version()}")
