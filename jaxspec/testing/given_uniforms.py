"""Makes a NumPy generator a function of given uniforms, so that a verifier that draws from it is worked out exactly."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxspec.testing.cells import NotPartitionedError

MOST_UNIFORMS = 8
_UNUSED = np.random.PCG64(0)
# NumPy's own `choice` takes its uniforms from `random`, if it gets probabilities.
_METHODS = frozenset({"random", "uniform", "choice", "multinomial", "capsule"})  # the last is of `default_rng(rng)`


class MoreUniformsError(NotPartitionedError):
    """Reports the number of uniforms that a function draws, where it was given fewer."""


class GivenUniforms(np.random.Generator):
    """Hands out given uniforms, each once, by the methods of a NumPy generator that depend on nothing else."""

    def __init__(self, given: Float[np.ndarray, "m"]):
        """Makes one for a single call."""
        super().__init__(_UNUSED)
        self._given, self._count, self._refused = given, 0, ""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name not in _METHODS:
            self._refused = name
        return super().__getattribute__(name)

    def random(  # pyright: ignore[reportIncompatibleMethodOverride] -- its overloads are one function here
        self, size: Any = None, dtype: Any = np.float64, out: Any = None
    ) -> Any:
        # Once they are used up, 0.5: `check_given` says that there were too few.
        self._refuse("random(out=)", out is not None)
        count = 1 if size is None else math.prod(np.atleast_1d(size).tolist())
        values = np.full(count, 0.5, dtype)
        taken = self._given[self._count : self._count + count]
        values[: len(taken)] = taken
        self._count += count
        return float(values[0]) if size is None else values.reshape(size)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        self._refuse("uniform with arrays", np.ndim(low) + np.ndim(high) > 0)
        return low + (high - low) * self.random(size)

    def multinomial(self, n: Any, pvals: Any, size: Any = None) -> Any:
        super().multinomial(n, pvals, size)  # raises what NumPy raises of such arguments
        self._refuse("multinomial of several draws", size is not None or np.ndim(pvals) != 1 or np.any(n != 1))
        index = np.searchsorted(np.cumsum(pvals)[:-1], self.random(), side="right")
        return np.eye(len(pvals), dtype=np.int64)[index]

    def _refuse(self, what: str, refused: Any) -> None:
        if refused:
            self._refused = what


def check_given(given: GivenUniforms) -> None:
    """Raises an error unless a call was a function of the given uniforms.

    Raises:
      MoreUniformsError: it took more of them.
      NotPartitionedError: it took other random numbers.
    """
    state = vars(given)
    if state["_refused"]:
        raise NotPartitionedError(f"it uses rng.{state['_refused']}, which is not a function of a few uniforms")
    if state["_count"] > MOST_UNIFORMS:
        raise NotPartitionedError(f"it draws more than {MOST_UNIFORMS} uniforms")
    if state["_count"] > len(state["_given"]):
        raise MoreUniformsError(state["_count"])
