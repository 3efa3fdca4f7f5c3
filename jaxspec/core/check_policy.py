"""Checks sampling policies and their processors: concrete values on the host, traced ones in the program."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from jaxspec.core.processing import as_tuple, processors_of
from jaxspec.core.results import Status
from jaxspec.core.sampling import Policy, Sampling
from jaxspec.core.validate import LARGEST, is_concrete, shape_and_dtype, shown


def sampling(policy: Policy, batch: int) -> None:
    """Raises unless each sampling parameter is a scalar or `[b]`, and in range."""
    if not isinstance(policy, Sampling):
        return
    ranges = {
        "temperature": (policy.temperature, lambda x: x >= 0, ">= 0; 0 is greedy"),
        "top_p": (policy.top_p, lambda x: (x > 0) & (x <= 1), "in (0, 1]; 1 keeps every token"),
        "min_p": (policy.min_p, lambda x: (x >= 0) & (x <= 1), "in [0, 1]; 0 keeps every token"),
        "top_k": (policy.top_k, lambda x: (x == np.floor(x)) & (x >= 0), "an integer >= 0; 0 keeps every token"),
    }
    for name, (value, is_valid, expected) in ranges.items():
        if value is None and name != "temperature":
            continue
        if name == "top_k" and isinstance(value, int) and value > LARGEST:
            continue  # all tokens of any vocabulary
        shape, dtype = shape_and_dtype(name, value)
        if not (jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)):
            raise TypeError(f"{name} must be {expected}, got {shown(value)}; pass a number, or one per row")
        if shape not in ((), (batch,)):
            raise ValueError(f"{name} must be one value or one per row, got shape {shape} for {batch} rows")
        if name == "top_k" and not is_concrete(value) and not jnp.issubdtype(dtype, jnp.integer):
            raise TypeError(f"a traced top_k must have an integer dtype, got {dtype}")
        if is_concrete(value):
            with np.errstate(over="ignore"):
                values = (given := np.asarray(value)).astype(np.float32)  # as in the program
            if not np.all(np.isfinite(values) & is_valid(values) & is_valid(given)):
                raise ValueError(f"{name} must be {expected}, got {given.tolist()}")


def policy(policy: Policy, batch: int, vocab_size: int) -> None:
    """Raises `TypeError` or `ValueError` unless a policy and its processors fit the rows and the vocabulary."""
    sampling(policy, batch)
    for one in as_tuple(getattr(policy, "processors", ())):
        one.check(batch, vocab_size)


def draft_policy(policy: Any) -> None:
    """Raises unless a drafter's own policy has one value for all rows, in range."""
    if isinstance(policy, type) or not isinstance(policy, Policy):
        raise TypeError(f"a drafter's sampling must be a policy or None, got {shown(policy)}; pass Sampling(...)")
    if processors_of(policy):
        raise ValueError(
            f"a drafter's own sampling has no processors, got {processors_of(policy)}; pass them in the policy of "
            "generate, which processes drafts too"
        )
    if any(jnp.shape(leaf) for leaf in jax.tree.leaves(policy)):
        raise ValueError(
            "a drafter's own sampling must have one value for all rows, got an array; "
            "leave it None to draft with each row's own policy"
        )
    sampling(policy, batch=1)


def key_needed(key: object, policy: Policy) -> None:
    """Raises `ValueError` if a policy draws and `key` is `None`."""
    if key is None and not policy.greedy:
        raise ValueError("sampling needs a key, got key=None; pass key=jax.random.key(seed), or sampling=Greedy()")


def traced_status(
    tokens: Int[Array, "b t"],
    prompt_length: Int[Array, "b"],
    limit_fits: Bool[Array, "b"],
    policy: Policy,
    vocab_size: int,
) -> Int[Array, "b"]:
    """Computes the `Status` of each row from values that the host could not read."""
    batch, width = tokens.shape
    used = jnp.arange(width, dtype=jnp.int32)[None] < prompt_length[:, None]
    in_range = jnp.all(~used | ((tokens >= 0) & (tokens < vocab_size)), axis=1)
    length_ok = (prompt_length >= 1) & (prompt_length <= width)
    status = jnp.full(batch, Status.OK, jnp.int32)
    for good, code in (
        (_sampling_in_range(policy) & _processors_in_range(policy, vocab_size), Status.BAD_SAMPLING),
        (limit_fits, Status.BAD_MAX_NEW_TOKENS),
        (in_range, Status.TOKEN_OUT_OF_RANGE),
        (length_ok, Status.BAD_PROMPT_LENGTH),
    ):
        status = jnp.where(good, status, jnp.int32(code))
    return status


def _processors_in_range(policy: Policy, vocab_size: int) -> Array:
    good = jnp.ones((), jnp.bool_)
    for one in processors_of(policy):
        good = good & one.in_range(vocab_size)
    return good


def _sampling_in_range(policy: Policy) -> Array:
    if not isinstance(policy, Sampling):
        return jnp.ones((), jnp.bool_)
    temperature, top_k = jnp.asarray(policy.temperature), 0 if policy.top_k is None else policy.top_k
    good = (temperature >= 0) & (temperature < math.inf) & (top_k >= 0)
    if policy.top_p is not None:
        good = good & (policy.top_p > 0) & (policy.top_p <= 1)
    if policy.min_p is not None:
        good = good & (policy.min_p >= 0) & (policy.min_p <= 1)
    return good
