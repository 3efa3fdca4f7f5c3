"""Checks that a target has the hidden states that a drafter reads."""

from jaxspec.nn.language_model import LanguageModel


def check_capture(name: str, target: object, capture: tuple[int, ...], width: int) -> LanguageModel:
    """Returns `target`, which has the states `capture`, each `width` wide.

    Args:
      name: of the drafter, for the message.
      target: the model that would be read.
      capture: `i` is the state that enters layer `i`.
      width: of one state.

    Raises:
      TypeError: the target is no `LanguageModel`, so it has no states, embedding or head to share.
      ValueError: it has fewer layers, or states of another width.
    """
    if not isinstance(target, LanguageModel):
        raise TypeError(
            f"{name} reads hidden states and the embedding of a LanguageModel, got a target of type "
            f"{type(target).__name__}; load the target with jaxspec.load, or pass a drafter that reads tokens alone"
        )
    config = target.module.config
    if max(capture) > config.num_layers or min(capture) < 0:
        raise ValueError(
            f"{name}'s head reads the states entering layers {', '.join(map(str, capture))}, got a target of "
            f"{config.num_layers} layers; pass the head that was trained for this target"
        )
    if width != config.width:
        raise ValueError(
            f"{name}'s head reads states of width {width}, got a target of width {config.width}; pass the head that "
            "was trained for this target"
        )
    return target
