"""Holds the options of a run, and loads its target."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

from jaxspec.bench.peers.table import PEERS
from jaxspec.checkpoints.load import load
from jaxspec.core.sampling import Greedy, Policy, Sampling
from jaxspec.drafters.adapt import LengthOption
from jaxspec.named import VERIFIERS
from jaxspec.nn.convert import KERNELS, weights_for
from jaxspec.nn.language_model import LanguageModel
from jaxspec.training.prompts import Conversation


@dataclasses.dataclass(frozen=True)
class Setting:
    """Defines the options of a run.

    Attributes:
      model: the target's name.
      drafters: names as `jaxspec.load_drafter` takes them.
      lengths: numbers of drafted tokens a round, or "adaptive", "adaptive:16"; none is each drafter's own number.
      batches: numbers of requests that are decoded together.
      temperatures: 0 is greedy decoding.
      max_new_tokens: the most tokens of an answer.
      repeats: how often each answer is timed.
      seed: of sampling.
      dtype: of weights and activations; `None` is the default of `load`.
      kernels: the target's matmul kernels: a name of `jaxspec.nn.convert.KERNELS`.
      verifier: a name of `jaxspec.named.VERIFIERS`; `None` is each drafter's default.
      against: names of `jaxspec.bench.peers.table.PEERS` that answer the same questions.
      against_draft: the draft model that they are measured with, too, or `None`.
      file_only: whether they are compared on the file as it is alone, where they read it.
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

    def __post_init__(self):
        if not self.drafters:
            raise ValueError("there is no drafter to measure; pass one, such as 'ngram'")
        if "none" in self.drafters:
            raise ValueError("plain decoding is always measured; leave the drafter 'none' out")
        for name, table in (("kernels", KERNELS), ("verifier", VERIFIERS)):
            if (value := getattr(self, name)) is not None and value not in table:
                raise ValueError(f"{name} must be one of {', '.join(table)}, got {value!r}")
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
            raise ValueError("the peers answer one request at a time; pass --batch 1 beside the others")
        if self.against_draft is not None and not self.against:
            raise ValueError("--against-draft is a draft model of the peers; pass --against too")
        if self.file_only and not self.against:
            raise ValueError("--file-only says what the peers are compared on; pass --against too")

    def described(self, questions: Sequence[Conversation]) -> dict[str, Any]:
        """Returns the options and the questions, for JSON: two runs with the same can be one."""
        return json.loads(json.dumps(dataclasses.asdict(self))) | {
            "questions": len(questions),
            "questions_sha256": hashlib.sha256(repr(list(questions)).encode()).hexdigest(),
        }


def load_target(setting: Setting) -> tuple[LanguageModel, LanguageModel]:
    """Loads the target: as it is read for the setting's kernels, and with them."""
    loaded = load(setting.model, dtype=setting.dtype, weights=weights_for(setting.kernels))
    return loaded, KERNELS[setting.kernels](loaded)


def load_plain(setting: Setting) -> tuple[LanguageModel, LanguageModel]:
    """Loads the target as plain arrays, which peers can be given, and the same with kernels that multiply by those."""
    loaded = load(setting.model, dtype=setting.dtype, weights="dequantized")
    return loaded, KERNELS["auto" if setting.kernels == "stored" else setting.kernels](loaded)


def policy_at(temperature: float) -> Policy:
    """Returns the sampling policy of a temperature."""
    return Greedy() if temperature == 0 else Sampling(temperature=temperature)
