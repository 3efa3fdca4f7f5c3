"""Where NumPy computes instead of a small program, bits, types and devices are those of the program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import pjit

from tests._fixtures import on_the_host

pytestmark = pytest.mark.skipif(
    jax.__version_info__ >= on_the_host._KNOWN_BEFORE, reason="JAX compiles these here; an older version does not"
)
RANDOM = np.random.default_rng(0)
X = jnp.asarray(RANDOM.normal(size=(3, 4, 5)).astype(np.float32))
N = jnp.asarray(RANDOM.integers(-7, 7, (3, 4)), jnp.int32)
SEED = jnp.asarray([3, 2**31 + 5], jnp.uint32)

CASES = {
    "moves": [
        lambda: (X[1], X[:, 1:3], X[::-1], X[..., 0], X.T, X.reshape(4, -1), X[:, None], jnp.squeeze(X[:1])),
        lambda: (X[N[0, 0]], X[jnp.array([0, 9])], N[jnp.array([0, 9, -1])], jnp.take(X, N, axis=1)),
        lambda: (jnp.take(X, N, axis=1, mode="clip"), jnp.take_along_axis(X, jnp.abs(N)[:, :2, None] % 4, axis=1)),
        lambda: (jnp.stack([N, N]), jnp.concatenate([X, X], 1), jnp.pad(N, ((0, 0), (1, 2))), jnp.roll(N, 1, 1)),
        lambda: (jnp.repeat(N, 2, 0), jnp.broadcast_to(N[:, None], (3, 2, 4)), jnp.split(N, 2, 1), [*N]),
        lambda: (jnp.arange(7), jnp.eye(3), jnp.tril(X[0]), N.astype(jnp.float32), N.astype(bool)),
        lambda: (jax.lax.dynamic_update_slice(N, N[:1, :2], (2, 3)), jnp.where(N > 0, X[..., 0], 0.0)),
    ],
    "numbers": [
        lambda: (N + 1, N - N, N * N, N // 2, N % 3, jax.lax.rem(N, jnp.int32(3)), jax.lax.div(N, jnp.int32(3))),
        lambda: (
            jnp.abs(N),
            jnp.sign(N),
            -N,
            N << 2,
            N >> 1,
            jax.lax.shift_right_logical(N, jnp.int32(3)),
            jnp.maximum(X, 0.5),
            N << 32,
            N >> N,
            ~N,
            N & 3,
        ),
        lambda: (N.sum(), N.sum(1), N.max(1), N.min(), (N > 0).all(), (N > 0).any(0), jnp.clip(N, 0, 3)),
        lambda: (N.cumsum(1), jnp.cumprod(N), jax.lax.cumsum(N, 1, True), N == 3, N <= N, N != 0, N.astype(jnp.uint8)),
        lambda: (X + 1.0, X * X - X, -X, X > 0, X == X, X * 1e-30, X * 1e-40, jnp.float32(jnp.inf) - jnp.inf),
        lambda: (
            X / 3.0,
            X.sum(),
            jnp.exp(X),
            X.astype(jnp.bfloat16),
            X.astype(jnp.int32),
            jnp.maximum(X, 0.0),
            jnp.minimum(X, -X),
            jnp.isfinite(X),
        ),
    ],
    "random numbers": [
        lambda: jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(SEED), 3)),
        lambda: jax.random.key_data(jax.random.split(jax.random.wrap_key_data(SEED), (3, 2))),
        lambda: jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(SEED), N[0, 0])),
        lambda: jax.random.key_data(jax.random.key(-7)),
        lambda: jax.lax.shift_right_logical(SEED, jnp.uint32(32)),
        lambda: jax.random.bits(jax.random.wrap_key_data(SEED), (3, 3)),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_the_bits_are_those_of_the_programs(kind, monkeypatch):
    compared = []
    in_numpy = pjit._pjit_call_impl_python

    def both(*args, **options):
        found = in_numpy(*args, **options)
        if found[1] is None:
            compared.append(options["name"])
            for x, expected in zip(found[0], in_numpy.__wrapped__(*args, **options)[0], strict=True):
                assert np.asarray(x).tobytes() == np.asarray(expected).tobytes(), options["jaxpr"]
                assert (x.aval, x.sharding, x.committed) == (expected.aval, expected.sharding, expected.committed)
        return found

    monkeypatch.setattr(pjit, "_pjit_call_impl_python", both)
    jax.clear_caches()
    for case in CASES[kind]:
        case()
    assert len(set(compared)) >= {"moves": 12, "numbers": 15, "random numbers": 4}[kind]


def test_programs_of_tests_are_compiled():
    assert on_the_host._is_of_jax(jax.jit(jnp.cumsum.__wrapped__).trace(N).jaxpr)
    assert not on_the_host._is_of_jax(jax.jit(lambda x: x + 1).trace(N).jaxpr)
