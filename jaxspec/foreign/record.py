"""Records what goes into the layers of a foreign Flax NNX model."""

from collections.abc import Callable
from typing import Any

from jax import Array


def record_inputs(modules: list[Any], wanted: tuple[int, ...]) -> Callable[[], tuple[Array, ...]]:
    """Makes modules keep their first argument when they are called next.

    Args:
      modules: those that a state may enter: the layers of a model, and its last norm. They are changed, so pass those
        of a model that is merged for one call.
      wanted: the numbers of some.

    Returns:
      A function that returns what went into these.

    Raises:
      ValueError: there are not so many.
    """
    if wanted and not 0 <= min(wanted) <= max(wanted) < len(modules):
        raise ValueError(f"states 0 to {len(modules) - 1} can be captured, got capture={wanted}")
    kept: dict[int, Array] = {}
    for number in set(wanted):
        module = modules[number]
        module.__class__ = _recording(type(module), number, kept)
    return lambda: tuple(kept[number] for number in wanted)


def _recording(kind: type, number: int, kept: dict[int, Array]) -> type:
    def call(self: Any, x: Array, *arguments: Any, **options: Any) -> Any:
        kept[number] = x
        return kind.__call__(self, x, *arguments, **options)

    return type(kind.__name__, (kind,), {"__call__": call})
