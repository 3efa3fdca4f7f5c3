"""Checks that a target has the hidden states that a drafter reads."""


def check_capture(name: str, target: object, capture: tuple[int, ...], width: int) -> tuple[int, int]:
    """Returns the layers of `target` and the width of its states, which has the states `capture`, each `width` wide.

    Args:
      name: of the drafter, for the message.
      target: the model that would be read.
      capture: `i` is the state that enters layer `i`.
      width: of one state.

    Raises:
      TypeError: the target has no `hidden_sizes` as a `LanguageModel` has them, so there are no states to read.
      ValueError: it has fewer layers, or states of another width.
    """
    sizes: tuple[int, int] | None = getattr(target, "hidden_sizes", None)
    if sizes is None:
        raise TypeError(
            f"{name} reads hidden states and the embedding of a LanguageModel, got a target of type "
            f"{type(target).__name__}; load the target with jaxspec.load, or pass a drafter that reads tokens alone"
        )
    layers, own = sizes
    if max(capture) > layers or min(capture) < 0:
        raise ValueError(
            f"{name}'s head reads the states entering layers {', '.join(map(str, capture))}, got a target of "
            f"{layers} layers; pass the head that was trained for this target"
        )
    if width != own:
        raise ValueError(
            f"{name}'s head reads states of width {width}, got a target of width {own}; pass the head that "
            "was trained for this target"
        )
    return sizes
