"""Loads the cases of a run: plain decoding, and each drafter at each number of drafts."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxspec.bench.setting import Setting
from jaxspec.checkpoints import zoo
from jaxspec.decoding.arguments import default_verifier
from jaxspec.draft_length.adaptive import Adaptive
from jaxspec.drafters.adapt import LengthOption, adapt
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.named import VERIFIERS, load_drafter, split_hybrid
from jaxspec.nn.language_model import LanguageModel
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.coupled import CoupledVerifier

PLAIN = "plain"


@dataclasses.dataclass(frozen=True)
class Case:
    """One way of decoding.

    Attributes:
      label: its name in tables.
      name: the drafter's name.
      drafter: `NoDrafter` for plain decoding.
      verifier: `None` is the drafter's default.
    """

    label: str
    name: str
    drafter: Drafter
    verifier: Verifier | None = None

    def is_exact(self, temperature: float) -> bool:
        """Returns whether it must write the tokens of plain decoding with the same key."""
        verifier = self.verifier or default_verifier(self.drafter)
        return verifier.lossless and (temperature == 0 or isinstance(verifier, CoupledVerifier))

    @property
    def k(self) -> int | None:
        """The drafted tokens of a round; `None` where each row finds its own number."""
        return None if _adapts(self.drafter) else self.drafter.max_drafts


def load_cases(setting: Setting, target: LanguageModel) -> list[Case]:
    """Loads each drafter once, and returns plain decoding, then the drafters at each `k`.

    Raises:
      ValueError: a drafter does not fit the target or a `k`.
      OSError: a drafter cannot be read or downloaded.
    """
    cases = [Case(PLAIN, PLAIN, NoDrafter())]
    for name in _in_full(setting):
        loaded = load_drafter(name, target, target_name=setting.model, dtype=setting.dtype, k="fixed")
        for k in setting.lengths or ("fixed",):
            cases.append(_case(name, setting, _drafting(loaded, k, setting, target), target))
    labels = [case.label for case in cases]
    if len(set(labels)) < len(labels):
        raise ValueError(f"drafters must have different names, got {', '.join(labels[1:])}; rename one's folder")
    return cases


def _drafting(loaded: Drafter, k: int | str, setting: Setting, target: LanguageModel) -> Drafter:
    """Returns the drafter with another number of drafts."""
    option = LengthOption.parse(k)
    if option.adaptive:
        return adapt(loaded, target, option.longest)
    return loaded if option.k is None else loaded.with_length(option.k)


def for_rows(cases: Sequence[Case], target: LanguageModel, rows: int) -> list[Case]:
    """Returns the cases for batches of so many rows: those that adapt count with the costs of these."""
    at = lambda drafter: adapt(drafter, target, drafter.max_drafts, batch=rows) if _adapts(drafter) else drafter  # noqa: E731
    return [dataclasses.replace(case, drafter=at(case.drafter)) for case in cases]


def with_halves(setting: Setting, cases: Sequence[Case], target: LanguageModel) -> list[Case]:
    """Adds each drafter that drafts several tokens at half as many, before it."""
    found = []
    for case in cases:
        if case.drafter.max_drafts > 1:
            half = _drafting(case.drafter, case.drafter.max_drafts // 2, setting, target)
            found.append(_case(case.name, setting, half, target))
        found.append(case)
    return found


def _case(name: str, setting: Setting, drafter: Drafter, target: LanguageModel) -> Case:
    drafter.check(target)
    verifier = None if setting.verifier is None else VERIFIERS[setting.verifier]()
    if verifier is not None:
        verifier.check(drafter)
    k = "adaptive" if _adapts(drafter) else drafter.max_drafts
    return Case(f"{_short(name, setting.model)}, k={k}", name, drafter, verifier)


def _adapts(drafter: Drafter) -> bool:
    return isinstance(drafter.model_part.draft_length, Adaptive)


def _in_full(setting: Setting) -> list[str]:
    """Returns the drafters' names, "auto" looked up."""
    names = [str(zoo.draft_name(name, setting.model)) for name in setting.drafters]
    if len(set(names)) < len(names):
        given, found = ", ".join(setting.drafters), ", ".join(names)
        raise ValueError(f"the drafters {given} are {found} for {setting.model}; name each once")
    return names


def _short(name: str, model: str) -> str:
    """Shortens a drafter's name: a path to its last part; what ships with the model, without the model's name."""
    if (hybrid := split_hybrid(name)) is not None:
        lookup, other = hybrid
        return f"{lookup.name}+{_short(other, model)}"
    return Path(name).name if Path(name).exists() else name.removeprefix(f"{model}/")


def longest_text(target: LanguageModel, cases: Sequence[Case]) -> int | None:
    """Returns the most tokens that all models have room for; `None` if there is no bound."""
    contexts = (target.context_length, *(case.drafter.context_length for case in cases))
    return min((length for length in contexts if length is not None), default=None)


def widest_prompt(target: LanguageModel, cases: Sequence[Case], new_tokens: int) -> int | None:
    """Returns the most tokens of a prompt with room for `new_tokens` in all models; `None` if there is no bound."""
    longest = longest_text(target, cases)
    return None if longest is None else longest - new_tokens
