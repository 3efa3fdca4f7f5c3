"""Checks sampling policies and their processors, as far as the host can read them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.processing import as_tuple, processors_of
from jaxspec.core.sampling import Policy, Sampling
from jaxspec.core.validate import shape_and_dtype
from jaxspec.core.values import LARGEST, is_concrete


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
            continue  # all tokens, of whatever vocabulary
        shape, dtype = shape_and_dtype(name, value)
        if not (jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)):
            raise TypeError(f"{name} must be {expected}, got {value!r}; pass a number, or one a row")
        if shape not in ((), (batch,)):
            raise ValueError(f"{name} must be one value or one a row, got shape {shape} for {batch} rows")
        if name == "top_k" and not is_concrete(value) and not jnp.issubdtype(dtype, jnp.integer):
            raise TypeError(f"a traced top_k must have an integer dtype, got {dtype}")
        if is_concrete(value):
            with np.errstate(over="ignore"):
                values = (given := np.asarray(value)).astype(np.float32)  # what the program will see
            if not np.all(np.isfinite(values) & is_valid(values) & is_valid(given)):
                raise ValueError(f"{name} must be {expected}, got {given.tolist()}")


def policy(policy: Policy, batch: int, vocab_size: int) -> None:
    """Raises `TypeError` or `ValueError` unless a policy and its processors fit the rows and the vocabulary."""
    sampling(policy, batch)
    for one in as_tuple(getattr(policy, "processors", ())):
        one.check(batch, vocab_size)


def draft_policy(policy: Any) -> None:
    """Raises unless a drafter's own policy is one for all rows, and in range."""
    if isinstance(policy, type) or not isinstance(policy, Policy):
        raise TypeError(f"a drafter's sampling must be a policy or None, got {policy!r}; pass Sampling(...)")
    if processors_of(policy):
        raise ValueError(
            f"a drafter's own sampling has no processors, got {processors_of(policy)}; pass them with generate's, by "
            "which drafts are processed too"
        )
    if any(jnp.shape(leaf) for leaf in jax.tree.leaves(policy)):
        raise ValueError(
            "a drafter's own sampling must have one value for all rows, got an array; "
            "leave it None to draft with each row's own policy"
        )
    sampling(policy, batch=1)


def key_needed(key: object, policy: Policy) -> None:
    """Raises if a policy draws and there is no key to draw with."""
    if key is None and not policy.greedy:
        raise ValueError("sampling needs a key, got key=None; pass key=jax.random.key(seed), or sampling=Greedy()")
