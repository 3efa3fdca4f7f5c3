"""Ordinary calls of jaxspec, checked by pyright: `pyright` finds no error here. Nothing here is run.

A user's own model, drafter, verifier, policy and draft length stand below, with the annotations that users write.
"""

import dataclasses
import functools
import pathlib
from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxspec
from jaxspec import Adaptive, Greedy, ModelDrafter, Sampling, SpeculativeDecoder, TokenVerifier
from jaxspec.core.state import Context


def drafters(
    target: jaxspec.LanguageModel, model: jaxspec.LanguageModel, folder: pathlib.Path
) -> list[jaxspec.Drafter]:
    adaptive = ModelDrafter(model, k=Adaptive(costs=(1.0, 1.1, 1.3), lengths=(0, 2, 4)))
    fixed = ModelDrafter(target, draft_vocabulary=32_768)
    ngram = jaxspec.NGramDrafter(k=4)
    assert_type(jaxspec.load_drafter("ngram", target), jaxspec.Drafter)
    return [
        *(adaptive, fixed, ngram),
        ModelDrafter(model, k=3, sampling=Greedy(), num_drafts=2, distinct=False),
        ModelDrafter(model, k=jaxspec.draft_length.ConfidenceStop(4, 0.4)),
        jaxspec.SuffixDrafter(k=4),
        jaxspec.HybridDrafter(ngram, fixed),
        jaxspec.EarlyExitDrafter(2, k=3),
        jaxspec.TreeDrafter(model, jaxspec.Tree((-1, -1, 0))),
        jaxspec.drafters.DynamicTreeDrafter(model, top_k=3, depth=3, nodes=8),
        jaxspec.load_drafter(folder, target, k="adaptive"),
        jaxspec.drafters.NoDrafter(),
    ]


def generation(target: jaxspec.LanguageModel, drafter: jaxspec.Drafter) -> jaxspec.Generation:
    lists = jaxspec.generate(target, drafter, [[1, 2, 3], [4, 5, 6]], max_new_tokens=8)
    numpy = jaxspec.generate(target, None, np.zeros((2, 3), np.int32), max_new_tokens=np.asarray([4, 8]))
    assert_type(lists, jaxspec.Generation)
    assert_type(numpy.tokens, Array)
    assert_type(numpy.lossless, bool)
    return jaxspec.generate(
        target,
        drafter,
        jnp.ones((2, 3), jnp.int32),
        prompt_length=[3, 2],
        key=jax.random.key(0),
        sampling=Sampling(temperature=jnp.asarray([0.0, 0.8]), top_p=0.9, top_k=40, min_p=0.05),
        verifier=jaxspec.BlockVerifier(),
        max_new_tokens=jnp.asarray([4, 8]),
        stop_tokens=(2,),
        capacity=16,
    )


@jax.jit
def inside_jit(target: jaxspec.LanguageModel, drafter: jaxspec.Drafter, prompt: Array, key: Array) -> Array:
    result = jaxspec.generate(target, drafter, prompt, key=key, sampling=Sampling(0.7), max_new_tokens=8)
    return result.tokens[:, -1] + result.stats.accepted


def under_vmap_and_scan(target: jaxspec.LanguageModel, prompts: Array, keys: Array) -> tuple[Array, Array]:
    one = functools.partial(jaxspec.generate, target, jaxspec.NGramDrafter(k=3), max_new_tokens=4, sampling=Sampling())
    mapped = jax.vmap(lambda prompt, key: one(prompt, key=key).tokens)(prompts, keys)
    _, scanned = jax.lax.scan(lambda carry, prompt: (carry, one(prompt, key=keys[0]).tokens), 0, prompts)
    return mapped, scanned


def round_by_round(target: jaxspec.LanguageModel, drafter: jaxspec.Drafter) -> jaxspec.Generation:
    state = jaxspec.init(target, drafter, [[1, 2, 3]], max_new_tokens=8, sampling=Greedy())
    assert_type(state, jaxspec.core.GenerationState)
    while not state.done.all():
        state, info = jaxspec.step(target, drafter, TokenVerifier(), state)
        assert_type(info, jaxspec.core.RoundInfo)
    state, info = jaxspec.step(target, None, None, state)
    state, info = jaxspec.jit_step(donate=True)(target, drafter, TokenVerifier(), state)
    for rows in jaxspec.stream(target, drafter, [[1, 2, 3]], max_new_tokens=8):
        assert_type(rows, list[np.ndarray])
    return jaxspec.finish(state)


def text(folder: pathlib.Path) -> str:
    target = jaxspec.load("smollm2-135m-instruct", dtype="float32")
    assert_type(target, jaxspec.LanguageModel)
    quantized = jaxspec.quantize_cache(jaxspec.quantize_weights(jaxspec.native_kernels(target)))
    decoders = [
        SpeculativeDecoder("smollm2-135m-instruct"),
        SpeculativeDecoder(folder, "auto"),
        SpeculativeDecoder(quantized, "ngram", k=4),
        SpeculativeDecoder(target, target, k=Adaptive((1.0, 1.1), (0, 2)), verifier=jaxspec.CoupledVerifier()),
        SpeculativeDecoder(target, jaxspec.load_drafter("suffix", target)),
        SpeculativeDecoder(target, None),
    ]
    for piece in decoders[0].stream("The sea is", max_new_tokens=8):
        print(piece)
    one = decoders[0].generate("The sea is", max_new_tokens=32, temperature=0.0, seed=1)
    several = decoders[0].generate(["The sea", "is"], stop="\n")
    turn = decoders[0].chat([{"role": "user", "content": "Hello"}])
    assert_type(one, jaxspec.TextResult)
    assert_type(several, list[jaxspec.TextResult])
    return one.text + several[0].text + turn.text


def trees_of_arrays(target: jaxspec.LanguageModel, folder: pathlib.Path) -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    jaxspec.save(jaxspec.shard(target, mesh), folder / "checkpoint")
    frozen = jaxspec.from_function(
        lambda params, tokens: params[tokens], jnp.zeros((8, 8)), vocab_size=8, context_length=64
    )
    jaxspec.generate(frozen, None, [[1]], max_new_tokens=2)


@jaxspec.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class OwnEntries:
    """Fed tokens, which are all that the cache holds."""

    tokens: Array

    def pad(self, count: int) -> "OwnEntries":
        return OwnEntries(jnp.pad(self.tokens, ((0, 0), (0, count - self.tokens.shape[1]))))

    def keep_path(self, nodes: Array) -> "OwnEntries":
        return OwnEntries(jnp.take_along_axis(self.tokens, nodes, axis=1))

    def put(self, fresh: "OwnEntries", start: Array | int) -> "OwnEntries":
        return OwnEntries(jax.lax.dynamic_update_slice_in_dim(self.tokens, fresh.tokens, start, axis=1))


@jaxspec.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class OwnCache:
    """A cache that holds all tokens."""

    tokens: Array
    length: Array

    def append(self, entries: OwnEntries) -> "OwnCache":
        rows = jnp.arange(len(entries.tokens))[:, None]
        places = self.length[:, None] + jnp.arange(entries.tokens.shape[1])
        return OwnCache(self.tokens.at[rows, places].set(entries.tokens), self.length + entries.tokens.shape[1])

    def truncate(self, length: Array) -> "OwnCache":
        return OwnCache(self.tokens, jnp.minimum(self.length, length))


@jaxspec.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class OwnModel:
    """A bigram model."""

    table: Array
    context_length: int | None = dataclasses.field(default=None, metadata={"static": True})
    traits = jaxspec.core.ModelTraits()

    @property
    def vocab_size(self) -> int:
        return self.table.shape[0]

    def init_cache(self, batch: int, capacity: int) -> OwnCache:
        return OwnCache(jnp.zeros((batch, capacity), jnp.int32), jnp.zeros(batch, jnp.int32))

    def __call__(
        self,
        tokens: Array,
        cache: OwnCache,
        *,
        mask: Array | None = None,
        positions: Array | None = None,
        capture: tuple[int, ...] = (),
        pending: Any = None,
    ) -> jaxspec.core.ModelOutput:
        del cache, mask, positions, capture, pending
        return jaxspec.core.ModelOutput(self.table[tokens], OwnEntries(tokens))


@jaxspec.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class OwnDrafter(jaxspec.Drafter):
    """Drafts the last token again."""

    k: int = dataclasses.field(default=2, metadata={"static": True})

    @property
    def max_drafts(self) -> int:
        return self.k

    @property
    def deterministic(self) -> bool:
        return True

    def init(self, context: Context, prefilled: Any, slots: int) -> tuple[()]:
        return ()

    def propose(self, rng: Any, state: tuple[()], context: Context) -> tuple[jaxspec.core.Proposal, tuple[()]]:
        tokens = jnp.tile(context.last, (1, self.k))
        return jaxspec.core.Proposal(tokens, jnp.ones(tokens.shape, jnp.bool_)), state


@jaxspec.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class OwnVerifier(jaxspec.Verifier):
    """Accepts nothing."""

    def verify(self, rng: Any, proposal: jaxspec.core.Proposal, target_log_probs: Array) -> jaxspec.core.Verdict:
        first = target_log_probs[:, 0] + rng.next_noise(target_log_probs.shape[-1])
        return jaxspec.core.Verdict(jnp.zeros(len(first), jnp.int32), jnp.argmax(first, axis=-1).astype(jnp.int32))


@jaxspec.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class OwnPolicy:
    """A fixed temperature."""

    greedy: bool = dataclasses.field(default=False, metadata={"static": True})

    def log_probs(self, logits: Array) -> Array:
        return jax.nn.log_softmax(logits / 2.0)


@jaxspec.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class OwnLength(jaxspec.draft_length.DraftLength):
    """Drafts four tokens, or none after a round in which nothing was accepted."""

    lengths: tuple[int, ...] = dataclasses.field(default=(0, 4), metadata={"static": True})

    def observe(self, state: Array, submitted: Array, accepted: Array, draftable: Array, active: Array) -> Array:
        del submitted, active
        return jnp.where(draftable, jnp.where(accepted > 0, 4, 0), state)


def own(prompt: Array) -> jaxspec.Generation:
    model = OwnModel(jnp.zeros((8, 8)))
    drafted = ModelDrafter(model, k=OwnLength())
    jaxspec.generate(model, drafted, prompt, max_new_tokens=4)
    jaxspec.generate(model, OwnDrafter(), prompt, verifier=OwnVerifier(), max_new_tokens=4)
    return jaxspec.generate(
        model, OwnDrafter(k=3), prompt, sampling=OwnPolicy(), max_new_tokens=4, key=jax.random.key(0)
    )
