"""Loads the cases of a run: plain decoding, and each drafter at each number of drafts."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxspec.bench.setting import Setting
from jaxspec.checkpoints import zoo
from jaxspec.drafters.adapt import LengthOption, adapt
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.named import VERIFIERS, has_weights, load_drafter, split_hybrid
from jaxspec.nn.language_model import LanguageModel
from jaxspec.verifiers.base import Verifier

PLAIN = "plain"


@dataclasses.dataclass(frozen=True)
class Case:
    """Names one way of decoding.

    Attributes:
      label: its name in tables.
      name: the drafter's name.
      drafter: `NoDrafter` for plain decoding.
      verifier: `None` is the drafter's default.
      adaptive: whether each row finds its own number of drafts.
    """

    label: str
    name: str
    drafter: Drafter
    verifier: Verifier | None = None
    adaptive: bool = False

    def is_exact(self, temperature: float) -> bool:
        """Returns whether it must write the tokens of plain decoding with the same key."""
        verifier = self.verifier or self.drafter.default_verifier
        return verifier.lossless and (temperature == 0 or verifier.same_tokens)

    def for_rows(self, target: LanguageModel, rows: int) -> "Case":
        """Returns the case for batches of so many rows: one that adapts counts with the costs of these."""
        if not self.adaptive:
            return self
        adapted = adapt(self.drafter, target, self.drafter.max_drafts, batch=rows)
        return dataclasses.replace(self, drafter=adapted)


def load_cases(setting: Setting, target: LanguageModel, *, halves: bool = False) -> list[Case]:
    """Loads each drafter once, and returns plain decoding, then the drafters at each `k`.

    Args:
      setting: names the drafters and the numbers of drafts; without these each has its own.
      target: the model to draft for.
      halves: whether a drafter with its own number is tried with half of it, too.

    Raises:
      ValueError: a drafter does not fit the target or a `k`.
      OSError: a drafter cannot be read or downloaded.
    """
    cases = [Case(PLAIN, PLAIN, NoDrafter())]
    verifier = None if setting.verifier is None else VERIFIERS[setting.verifier]()
    names = [str(zoo.draft_name(name, setting.model)) for name in setting.drafters]
    if len(set(names)) < len(names):
        given, found = ", ".join(setting.drafters), ", ".join(names)
        raise ValueError(f"the drafters {given} are {found} for {setting.model}; name each once")
    for name in names:
        dtype = setting.dtype if has_weights(name) else None
        loaded = load_drafter(name, target, target_name=setting.model, dtype=dtype, k="fixed")
        half = loaded.max_drafts // 2
        for k in setting.lengths or ([half, "fixed"] if halves and half > 0 else ["fixed"]):
            option, drafter = LengthOption.parse(k), loaded
            if option.adaptive:
                drafter = adapt(loaded, target, option.longest)
            elif option.k is not None:
                drafter = loaded.with_length(option.k)
            drafter.check(target)
            if verifier is not None:
                verifier.check(drafter)
            label = f"{_short(name, setting.model)}, k={'adaptive' if option.adaptive else drafter.max_drafts}"
            cases.append(Case(label, name, drafter, verifier, option.adaptive))
    labels = [case.label for case in cases]
    if len(set(labels)) < len(labels):
        raise ValueError(f"drafters must have different names, got {', '.join(labels[1:])}; rename one's folder")
    return cases


def _short(name: str, model: str) -> str:
    """Shortens a drafter's name: a path to its last part; what ships with the model, without the model's name."""
    if (hybrid := split_hybrid(name)) is not None:
        lookup, other = hybrid
        return f"{lookup.name}+{_short(other, model)}"
    return Path(name).name if Path(name).exists() else name.removeprefix(f"{model}/")


def widest_prompt(target: LanguageModel, cases: Sequence[Case], new_tokens: int) -> int | None:
    """Returns the most tokens of a prompt with room for `new_tokens` in all models; `None` if there is no bound.

    Decoding goes on without a draft model whose context ends; measured is what it drafts within.
    """
    contexts = (target.context_length, *(case.drafter.model_part.context_length for case in cases))
    return min((length - new_tokens for length in contexts if length is not None), default=None)
