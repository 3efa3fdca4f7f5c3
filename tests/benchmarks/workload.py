"""Prompts, cheap drafts and printed lines that the micro-benchmarks share."""

import dataclasses
import platform

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.timing import Spread
from jaxspec.nn.language_model import LanguageModel
from jaxspec.ops.packed import is_packed

TURNS = (
    "Explain {} to a child of ten.",
    "Write a short poem about {}.",
    "List five facts about {}.",
    "Write the first paragraph of a story in which {} plays a part.",
)
SUBJECTS = (
    "the sea",
    "a broken clock",
    "photosynthesis",
    "the city of Lisbon",
    "prime numbers",
    "bread",
    "the violin",
    "winter",
    "volcanoes",
    "a lost letter",
    "trains",
    "the honey bee",
)
PROBE_BYTES = 2**29  # read by each pass of `bandwidth_probe`
PROMPT = "Write a Python function that merges two sorted lists, and explain each step of it."


def chat_prompt(model: LanguageModel, text: str = PROMPT) -> np.ndarray:
    """Returns a chat turn as `[1, t]` token ids."""
    return np.asarray([model.tokenizer.apply_chat_template([{"role": "user", "content": text}])], np.int32)


def chat_prompts(model: LanguageModel, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns `count` different chat turns as `[count, t]` token ids, padded on the right, and their lengths."""
    texts = [
        TURNS[index % len(TURNS)].format(SUBJECTS[index // len(TURNS) % len(SUBJECTS)])
        for index in range(start, start + count)
    ]
    rows = [model.tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in texts]
    lengths = np.asarray([len(row) for row in rows], np.int32)
    tokens = np.zeros((count, 96), np.int32)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = ids
    return tokens, lengths


def disturbed(model: LanguageModel, scale: float) -> LanguageModel:
    """Returns a draft that often agrees with its target: the same matrices with noise.

    `scale` is the noise's standard deviation in units of each matrix's own.
    """

    def disturb(path, x):
        if x.ndim < 2:
            return x
        x = x.astype(jnp.float32) if is_packed(x) else x
        name = sum(ord(letter) * (index + 1) for index, letter in enumerate(jax.tree_util.keystr(path)))
        noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), name), x.shape, x.dtype)
        return x + scale * jnp.std(x) * noise

    params = jax.jit(lambda params: jax.tree_util.tree_map_with_path(disturb, params, is_leaf=is_packed))(model.params)
    return dataclasses.replace(model, params=params)


def first_layers(model: LanguageModel, count: int) -> LanguageModel:
    """Returns the model's first layers with its own head: a cheap draft that is rarely accepted."""
    config = model.module.config
    shorter = dataclasses.replace(config, num_layers=count, ropes=config.ropes[:count], windows=config.windows[:count])
    dropped = {f"layer_{index}" for index in range(count, config.num_layers)}
    params = {name: value for name, value in model.params.items() if name not in dropped}
    return dataclasses.replace(model, module=model.module.clone(config=shorter), params=params)


def filled_cache(model: LanguageModel, capacity: int, used: int):
    """Returns a cache that holds `used` arbitrary tokens."""
    return model.init_cache(1, capacity).truncate(jnp.full(1, used, jnp.int32))


def show_machine() -> None:
    """Prints device and versions: a figure means nothing without them."""
    device = jax.devices()[0]
    show("device", f"{device.platform} {device.device_kind} x {jax.device_count()}, {platform.machine()}")
    show("jax, python", f"{jax.__version__}, {platform.python_version()}")


def show(title: str, value: str) -> None:
    """Prints one aligned line."""
    print(f"{title:<58} {value}", flush=True)


def show_ratio(title: str, ratio: Spread) -> None:
    """Prints a ratio with its spread over the turns."""
    show(title, f"{ratio.median:.3f}  (turns {ratio.low:.3f} to {ratio.high:.3f})")


def bandwidth_probe(passes: int = 1):
    """Returns a case that reads half a GiB, as a vector-matrix product: the rate that decoding could reach.

    Where a call takes longer to begin than half a GiB to read, pass how often one call is to read it.
    """
    matrix = jnp.ones((2**17, 2**10), jnp.float32)
    vector = jnp.ones(2**10, jnp.float32)

    @jax.jit
    def product(matrix, vector):
        # Each pass needs all of the one before, or the compiler would leave it out.
        again = lambda _, vector: jnp.max((matrix @ vector).reshape(-1, 2**10), axis=0) * 2.0**-10  # noqa: E731
        return matrix @ jax.lax.fori_loop(0, passes - 1, again, vector)

    return lambda: product(matrix, vector)
