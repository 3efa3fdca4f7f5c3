"""Models of other projects are targets of an engine."""

import jax
import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.foreign import from_bonsai, from_tunix
from tests._fixtures import bonsai_like, foreign, text_models
from tests._fixtures.arrivals import CAPACITY, Alone, compare, requests, serve

TOKENIZER = text_models.byte_level()
KINDS = ("greedy", "coupled", "stop strings", "penalties")
pytestmark = pytest.mark.slow


def user_function():
    return jaxspec.from_function(_logits, jnp.float32(0.7), vocab_size=TOKENIZER.vocab_size)


def _logits(scale, tokens):
    """Depends on all tokens before."""
    before = jnp.cumsum(tokens + 1, axis=1)
    ids = jnp.arange(TOKENIZER.vocab_size, dtype=jnp.int32)[None, None]
    return scale * jnp.asarray((before[..., None] * 31 + ids * 17) % 97, jnp.float32) / 9


def bonsai():
    return from_bonsai(bonsai_like.made(vocab_size=TOKENIZER.vocab_size))


def tunix():
    pytest.importorskip("tunix")
    from flax import nnx
    from tunix.models.llama3 import model as llama3

    sizes = {"num_layers": 2, "embed_dim": 32, "hidden_dim": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
    config = llama3.ModelConfig(**sizes, vocab_size=TOKENIZER.vocab_size, rope_theta=10_000, norm_eps=1e-5)
    graph, state = nnx.split(llama3.Llama3(config, rngs=nnx.Rngs(0)))
    return from_tunix(nnx.merge(graph, foreign.randomized(state)), check=False)


@pytest.fixture(autouse=True)
def _promotes():
    """Lets foreign code promote as JAX does by default, in the threads of an engine too."""
    before = {name: jax.config.values[name] for name in ("jax_numpy_rank_promotion", "jax_numpy_dtype_promotion")}
    jax.config.update("jax_numpy_rank_promotion", "allow")
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("make", [user_function, bonsai, tunix], ids=lambda make: make.__name__)
def test_requests_have_the_results_of_lone_calls(make):
    target, drafter = make(), jaxspec.NGramDrafter(k=2, min_ngram=1)
    asked = requests(24, kinds=KINDS)
    with jaxspec.Engine(target, drafter, slots=3, capacity=CAPACITY, tokenizer=TOKENIZER) as engine:
        compare(asked, serve(engine, asked), Alone(target, drafter, tokenizer=TOKENIZER))
