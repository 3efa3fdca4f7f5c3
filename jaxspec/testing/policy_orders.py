"""Applies temperature, top-k and top-p to logits, in any order."""

import dataclasses
import itertools

import numpy as np
from jaxtyping import Float

Order = tuple[str, ...]
ORDER: Order = ("temperature", "top_k", "top_p")  # the order of transformers
_DECIDED = 0.02  # minimum distance of a sum of probabilities from top-p, so that rounding does not matter
_DIFFER = 0.01


@dataclasses.dataclass(frozen=True)
class PolicyOrder:
    """Holds the values of a sampling policy, and the order in which they are applied.

    Attributes:
      values: those of `temperature`, `top_k` and `top_p` that are set.
      order: names of all three, in the order of application.
    """

    values: dict[str, int | float]
    order: Order = ORDER

    def probs(self, logits: Float[np.ndarray, "v"]) -> Float[np.ndarray, "v"]:
        """Returns the distribution of a token."""
        for name in self.order:
            if name in self.values:
                logits = _STEPS[name](logits, self.values[name])
        return _softmax(logits)

    def others(self) -> tuple["PolicyOrder", ...]:
        """Returns the other orders of the values."""
        found = itertools.permutations(name for name in self.order if name in self.values)
        return tuple(PolicyOrder(self.values, order) for order in found)[1:]

    def __str__(self) -> str:
        return ", then ".join(name.replace("_", "-") for name in self.order if name in self.values)


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def _keep_most_likely(logits: np.ndarray, count: int | float) -> np.ndarray:
    return np.where(logits >= np.sort(logits)[::-1][min(int(count), logits.size) - 1], logits, -np.inf)


def _keep_nucleus(logits: np.ndarray, mass: int | float) -> np.ndarray:
    """Keeps the most likely tokens, up to the first at which their probabilities reach the mass."""
    order = np.argsort(-logits, kind="stable")
    probs = _softmax(logits)[order]
    kept = np.zeros(logits.size, np.bool_)
    kept[order] = np.cumsum(probs) - probs < mass
    return np.where(kept, logits, -np.inf)


_STEPS = {
    "temperature": lambda logits, value: logits / value,
    "top_k": _keep_most_likely,
    "top_p": _keep_nucleus,
}


def distinguishing_rows(policy: PolicyOrder, count: int) -> list[Float[np.ndarray, "v"]]:
    """Returns logits of few tokens that distinguish the policy from its other orders, if possible.

    Args:
      policy: values and their order.
      count: minimum number of rows.
    """
    rng, found, same = np.random.default_rng(0), [], list(policy.others())
    for vocab, _ in itertools.product((3, 4, 5), range(40)):
        logits = np.log(rng.permutation(20)[:vocab] + 1.0)
        different = [other for other in same if _differ(other.probs(logits), policy.probs(logits))]
        if (different or (not same and len(found) < count)) and _decided(policy, logits):
            found.append(logits)
            same = [other for other in same if other not in different]
        if not same and len(found) >= count:
            return found
    return found + [np.log(np.array([10.0, 6.0, 4.0])) + 1.0] * (count - len(found))


def _differ(one: np.ndarray, other: np.ndarray) -> bool:
    return float(np.abs(one - other).sum()) > _DIFFER


def _decided(policy: PolicyOrder, logits: np.ndarray) -> bool:
    """Returns whether small changes of top-p have no effect, in any order."""
    if "top_p" not in policy.values:
        return True
    near = [policy.values | {"top_p": policy.values["top_p"] + sign * _DECIDED} for sign in (-1, 1)]
    orders = (policy, *policy.others())
    probs = [[PolicyOrder(values, each.order).probs(logits) for values in near] for each in orders]
    return not any(_differ(low, high) for low, high in probs)
