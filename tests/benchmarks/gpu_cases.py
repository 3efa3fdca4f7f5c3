"""Cases that the GPU benchmark times: models, what drafts for them, and the program of each."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxspec
from jaxspec.bench.synthetic import SyntheticVerifier
from jaxspec.checkpoints.load import load
from jaxspec.checkpoints.params import abstract_model
from jaxspec.draft_length.costs import read_bytes
from jaxspec.drafters.base import Drafter
from jaxspec.families.table import SHAPES, shape
from jaxspec.nn.language_model import LanguageModel
from jaxspec.text.names import load_drafter
from jaxspec.verifiers.base import Verifier
from tests.benchmarks.workload import chat_prompts

PLAIN, K = "plain", 4
# Random weights never agree with each other: drafts are accepted at this rate, for any models.
ACCEPTANCE = 0.6
# Of a model of shapes alone, what drafts for it.
DRAFT_OF = {"llama-3.1-8b": "llama-3.2-1b", "smollm2-135m": "smollm2-135m"}
BATCHES, TEMPERATURES = (1, 8), (0.0, 1.0)
PROMPT = 96


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to decode: what drafts, at which temperature, how many rows."""

    drafter: str
    temperature: float
    batch: int


@dataclasses.dataclass(frozen=True)
class Setup:
    """A model with all that its cases need.

    Attributes:
      name: of the zoo, or of `SHAPES`, whose weights are then random.
      target: the model.
      drafters: by name; `PLAIN` is `None`.
      verifier: `None` is each drafter's default.
      prompts: `[b, PROMPT]` token ids, for the largest batch.
      lengths: how many of them count, row by row.
    """

    name: str
    target: LanguageModel
    drafters: Mapping[str, Drafter | None]
    verifier: Verifier | None
    prompts: np.ndarray
    lengths: np.ndarray

    def cases(self) -> list[Case]:
        """Returns all cases, those that say most first."""
        return [Case(name, *rest) for rest in itertools.product(TEMPERATURES, BATCHES) for name in self.drafters]

    def about(self) -> dict[str, Any]:
        """Returns what a reader must know of the models."""
        config = self.target.module.config
        return {
            "model": self.name,
            "dtype": self.target.dtype.name,
            "layers": config.num_layers,
            "weights": "random" if self.name in SHAPES else "trained",
            "weight_bytes": read_bytes(self.target),
            "drafts": K,
            "acceptance": None if self.verifier is None else ACCEPTANCE,
        }


def setup(name: str, dtype: str = "bfloat16", layers: int | None = None) -> Setup:
    """Loads a model of the zoo with its drafters, or makes one of `SHAPES` with random weights and a draft model.

    Args:
      name: the model's.
      dtype: of weights and activations.
      layers: number of layers to make of a model of shapes; its draft keeps the same fraction.
    """
    if name in SHAPES:
        target, draft = random_model(name, dtype, layers, 0), DRAFT_OF[name]
        share = target.module.config.num_layers / shape(name).num_layers
        small = random_model(draft, dtype, max(round(share * shape(draft).num_layers), 1), 1)
        prompts = np.random.default_rng(0).integers(0, target.vocab_size, size=(max(BATCHES), PROMPT))
        lengths = np.full(max(BATCHES), PROMPT, np.int32)
        drafters = {PLAIN: None, f"draft model {draft}": jaxspec.ModelDrafter(small, k=K)}
        verifier = SyntheticVerifier((ACCEPTANCE,))
        return Setup(name, target, drafters, verifier, prompts.astype(np.int32), lengths)
    target = load(name, dtype=dtype)
    eagle = load_drafter("eagle", target, target_name=name, k=K)
    drafters = {PLAIN: None, "eagle": eagle, "ngram": jaxspec.NGramDrafter(k=K)}
    return Setup(name, target, drafters, None, *chat_prompts(target, 0, max(BATCHES)))


def random_model(name: str, dtype: str, layers: int | None, seed: int) -> LanguageModel:
    """Makes a model of these shapes with random weights, on the device: none of them passes through the host."""
    config = shape(name)
    layers = layers or config.num_layers
    config = dataclasses.replace(
        config, num_layers=layers, ropes=config.ropes[:layers], windows=config.windows[:layers]
    )
    abstract = abstract_model(config, dtype)
    leaves, tree = jax.tree.flatten(abstract.params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    params = [_random(key, x.shape, x.dtype) for key, x in zip(keys, leaves, strict=True)]
    return dataclasses.replace(abstract, params=jax.tree.unflatten(tree, params))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _random(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Draws a matrix, small enough for deep models; a norm's scale is ones."""
    if len(shape) == 1:
        return jnp.ones(shape, dtype)
    return 0.02 * jax.random.normal(key, shape, dtype)


def program(made: Setup, case: Case, new_tokens: int) -> tuple[Callable[..., jaxspec.Generation], tuple[Any, ...]]:
    """Returns a case's function to compile, and its arguments but for the last, each row's budget of new tokens.

    One program serves all budgets up to `new_tokens`.
    """
    drafter = made.drafters[case.drafter]
    verifier = None if drafter is None else made.verifier

    def decode(target, drafter, verifier, prompt, length, key, temperature, budget):
        return jaxspec.generate(
            target,
            drafter,
            prompt,
            prompt_length=length,
            key=key,
            sampling=jaxspec.Sampling(temperature) if case.temperature else jaxspec.Greedy(),
            verifier=verifier,
            lossy=verifier is not None,
            max_new_tokens=budget,
            capacity=PROMPT + new_tokens,
        )

    rows = slice(0, case.batch)
    prompt, length = jnp.asarray(made.prompts[rows]), jnp.asarray(made.lengths[rows])
    temperature = jnp.full((), case.temperature or 1.0, jnp.float32)
    return decode, (made.target, drafter, verifier, prompt, length, jax.random.key(7), temperature)
