"""Defines the options of a run, and loads its target and cases: plain decoding, and each drafter at each `k`."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxspec.bench.peers.table import PEERS
from jaxspec.checkpoints.load import load
from jaxspec.core import validate
from jaxspec.core.sampling import Greedy, Policy, Sampling
from jaxspec.drafters.adapt import LengthOption, adapt, with_length
from jaxspec.drafters.base import Drafter, NoDrafter
from jaxspec.drafters.hybrid import halves
from jaxspec.nn.convert import KERNELS, weights_for
from jaxspec.nn.language_model import LanguageModel
from jaxspec.text.names import drafter_name, has_weights, load_drafter, short_name, split_hybrid, split_tree
from jaxspec.training.prompts import Conversation
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.table import VERIFIERS, default_verifier

PLAIN = "plain"


@dataclasses.dataclass(frozen=True)
class Setting:
    """Defines the options of a run.

    Attributes:
      model: the target's name.
      drafters: names that `jaxspec.load_drafter` takes.
      lengths: numbers of drafts per round, or "adaptive", "adaptive:16"; empty means each drafter's own number.
      batches: numbers of requests to decode together.
      temperatures: sampling temperatures; 0 is greedy decoding.
      max_new_tokens: the maximum number of tokens of an answer.
      repeats: how often each answer is timed.
      seed: the seed of sampling.
      dtype: the dtype of weights and activations; `None` means the default of `load`.
      kernels: the target's matmul kernels, a name in `jaxspec.nn.convert.KERNELS`.
      verifier: a name in `jaxspec.verifiers.table.VERIFIERS`; `None` means each drafter's default.
      against: the peers that answer the same questions, names in `jaxspec.bench.peers.table.PEERS`.
      against_draft: a draft model with which the peers are also measured, or `None`.
      file_only: whether to compare peers that read the target's file on that file only.
    """

    model: str
    drafters: tuple[str, ...]
    lengths: tuple[int | str, ...] = ()
    batches: tuple[int, ...] = (1,)
    temperatures: tuple[float, ...] = (0.0,)
    max_new_tokens: int = 128
    repeats: int = 3
    seed: int = 0
    dtype: str | None = None
    kernels: str = "auto"
    verifier: str | None = None
    against: tuple[str, ...] = ()
    against_draft: str | None = None
    file_only: bool = False

    def __post_init__(self):  # noqa: C901 (a list of checks)
        if not self.drafters:
            raise ValueError("there is no drafter to measure; pass one, such as 'ngram'")
        if "none" in self.drafters:
            raise ValueError("plain decoding is always measured; leave the drafter 'none' out")
        for name, table in (("kernels", KERNELS), ("verifier", VERIFIERS)):
            if (value := getattr(self, name)) is not None:
                validate.one_of(name, value, table)
        for name in ("drafters", "lengths", "batches", "temperatures", "against"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name} must differ from each other, got {', '.join(map(str, values))}")
        words = [k for k in self.lengths if isinstance(k, str)]
        if not all(LengthOption.parse(word).adaptive for word in words) or len(words) > 1:
            raise ValueError(f"k must be numbers and 'adaptive' at most once, got {', '.join(words)}")
        counts = {"k": [k for k in self.lengths if isinstance(k, int)], "batch": self.batches}
        counts |= {"max_new_tokens": (self.max_new_tokens,), "repeats": (self.repeats,)}
        for name, values in counts.items():
            if values and min(values) < 1:
                raise ValueError(f"{name} must be at least 1, got {min(values)}")
        for value in self.temperatures:
            if not 0 <= value < math.inf:
                raise ValueError(f"temperature must be at least 0, got {value}")
        if unknown := sorted(set(self.against) - PEERS.keys()):
            raise ValueError(f"peers are {', '.join(PEERS)}, got {', '.join(unknown)}")
        if self.against and 1 not in self.batches:
            raise ValueError("the peers answer one request at a time; pass --batch 1 in addition to the others")
        if self.against_draft is not None and not self.against:
            raise ValueError("--against-draft is a draft model of the peers; pass --against too")
        if self.file_only and not self.against:
            raise ValueError("--file-only limits what the peers are compared on; pass --against too")

    def described(self, questions: Sequence[Conversation]) -> dict[str, Any]:
        """Returns the options and the questions, for JSON; runs for which these are equal can be continued as one."""
        return json.loads(json.dumps(dataclasses.asdict(self))) | {
            "questions": len(questions),
            "questions_sha256": hashlib.sha256(repr(list(questions)).encode()).hexdigest(),
        }


def load_target(setting: Setting) -> tuple[LanguageModel, LanguageModel]:
    """Loads the target for the setting's kernels, and returns it before and after its conversion to them."""
    loaded = load(setting.model, dtype=setting.dtype, weights=weights_for(setting.kernels))
    return loaded, KERNELS[setting.kernels](loaded)


def load_plain(setting: Setting) -> tuple[LanguageModel, LanguageModel]:
    """Loads the target as plain arrays, which peers can use, and returns it also with kernels for plain arrays."""
    loaded = load(setting.model, dtype=setting.dtype, weights="dequantized")
    return loaded, KERNELS["auto" if setting.kernels == "stored" else setting.kernels](loaded)


def policy_at(temperature: float) -> Policy:
    """Returns the sampling policy for a temperature."""
    return Greedy() if temperature == 0 else Sampling(temperature=temperature)


@dataclasses.dataclass(frozen=True)
class Case:
    """Describes one way of decoding.

    Attributes:
      label: its name in tables.
      name: the drafter's name in commands.
      drafter: the drafter; `NoDrafter` for plain decoding.
      verifier: the verifier; `None` means the drafter's default.
      adaptive: whether each row adapts its number of drafts.
    """

    label: str
    name: str
    drafter: Drafter
    verifier: Verifier | None = None
    adaptive: bool = False

    def is_exact(self, temperature: float) -> bool:
        """Returns whether the case must emit the tokens of plain decoding with the same key."""
        verifier = self.verifier or default_verifier(self.drafter)
        return verifier.lossless and (temperature == 0 or verifier.same_tokens)

    def for_rows(self, target: LanguageModel, rows: int) -> "Case":
        """Returns the case for batches of `rows` rows; an adaptive case uses the costs of that batch size."""
        if not self.adaptive:
            return self
        adapted = adapt(self.drafter, target, self.drafter.max_drafts, batch=rows)
        return dataclasses.replace(self, drafter=adapted)


def load_cases(setting: Setting, target: LanguageModel, *, halves: bool = False) -> list[Case]:
    """Loads each drafter once, and returns plain decoding, then the drafters at each `k`.

    Args:
      setting: names the drafters and the numbers of drafts; without numbers, each drafter uses its own.
      target: the model to draft for.
      halves: whether to also try a drafter with half of its own number.

    Raises:
      ValueError: if a drafter does not fit the target or a `k`.
      OSError: if a drafter cannot be read or downloaded.
    """
    cases = [Case(PLAIN, PLAIN, NoDrafter())]
    verifier = None if setting.verifier is None else VERIFIERS[setting.verifier]()
    names = [str(drafter_name(name, setting.model)) for name in setting.drafters]
    if len(set(names)) < len(names):
        given, found = ", ".join(setting.drafters), ", ".join(names)
        raise ValueError(f"the drafters {given} are {found} for {setting.model}; name each once")
    for name in names:
        dtype = setting.dtype if has_weights(name) else None
        loaded = load_drafter(name, target, target_name=setting.model, dtype=dtype, k="fixed")
        half = loaded.lengths[-1] // 2
        for k in setting.lengths or ([half, "fixed"] if halves and half > 0 else ["fixed"]):
            option, drafter = LengthOption.parse(k), loaded
            if option.adaptive:
                drafter = adapt(loaded, target, option.longest)
            elif option.k is not None:
                drafter = with_length(loaded, option.k)
            drafter.check(target)
            if verifier is not None:
                verifier.check(drafter)
            label = f"{_short(name, setting.model)}, k={'adaptive' if option.adaptive else drafter.lengths[-1]}"
            cases.append(Case(label, short_name(name, setting.model), drafter, verifier, option.adaptive))
    labels = [case.label for case in cases]
    if len(set(labels)) < len(labels):
        raise ValueError(f"drafters must have different names, got {', '.join(labels[1:])}; rename one's folder")
    return cases


def _short(name: str, model: str) -> str:
    """Shortens a drafter's name for tables, further than `short_name`: a path to its last part."""
    for split, sign in ((split_hybrid, "+"), (split_tree, ":")):
        if (parts := split(name)) is not None:
            return f"{parts[0]}{sign}{_short(parts[1], model)}"
    return Path(name).name if Path(name).exists() else short_name(name, model)


def widest_prompt(target: LanguageModel, cases: Sequence[Case], new_tokens: int) -> int | None:
    """Returns the length of the longest prompt with room for `new_tokens` in all models; `None` if unbounded.

    Decoding continues without a draft model after the end of its context; measurements stay within it.
    """
    contexts = (target.context_length, *(halves(case.drafter)[1].info.context_length for case in cases))
    return min((length - new_tokens for length in contexts if length is not None), default=None)
