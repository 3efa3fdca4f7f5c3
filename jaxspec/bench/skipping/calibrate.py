"""From a model and texts to the set of blocks that it drafts best without."""

from collections.abc import Callable

from jaxspec.bench.skipping.measure import Measure, costs
from jaxspec.bench.skipping.prediction import Rounds
from jaxspec.bench.skipping.search import ATTENTION, MLP, Found, search
from jaxspec.bench.skipping.texts import Texts
from jaxspec.bench.speed.setting import policy_at
from jaxspec.drafters import SkippingDrafter
from jaxspec.model import LanguageModel
from jaxspec.weights.skip_set import SkipSet, sizes_of

LIMIT = 400


def find_skip_set(
    target: LanguageModel,
    texts: Texts,
    *,
    rounds: Rounds | None = None,
    temperature: float = 0.0,
    limit: int = LIMIT,
    tell: Callable[[Found], None] = lambda _: None,
) -> SkipSet:
    """Searches for the attention and MLP blocks to skip while drafting, for `SkippingDrafter`.

    What a set is worth is the expected speed-up: the acceptance is measured on the texts, every token being drafted
    after the text itself; the cost of a draft step is taken to be its share of the bytes of weights that a step reads.
    Same texts, same result.

    Args:
      target: the model, a `LanguageModel` over a `jaxspec.nn.Transformer` of two layers at least.
      texts: what it writes, or is to write.
      rounds: how many drafts they have, and what verification costs; `None` is `Rounds()`.
      temperature: of the law that is kept; 0 is greedy.
      limit: the most sets to measure, a pass over the texts each.
      tell: is told of the best set so far after each.

    Returns:
      The best set that was measured. Its `speedup` may be below 1: then no set that was seen pays.

    Raises:
      TypeError: the target is no such model.
      ValueError: it has one layer, or a number is out of range.
      FloatingPointError: its states are not finite.
    """
    SkippingDrafter(mlp=(0,)).check(target)
    rounds = Rounds() if rounds is None else rounds
    measure = Measure.of(target, policy_at(temperature), texts)
    found = search(measure, costs(target), rounds.speedup, limit=limit, tell=tell)
    layers = lambda wanted: tuple(sorted(layer for kind, layer in found.skipped if kind == wanted))  # noqa: E731
    return SkipSet(
        attention=layers(ATTENTION),
        mlp=layers(MLP),
        k=rounds.k,
        temperature=temperature,
        acceptance=round(found.acceptance, 6),
        cost=round(found.cost, 6),
        verify_cost=rounds.verify_cost,
        tokens_per_round=round(rounds.tokens(found.acceptance), 6),
        speedup=round(found.speedup, 6),
        places=texts.places,
        measured=found.measured,
        model=sizes_of(target.module.config),
    )
