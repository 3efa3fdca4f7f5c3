"""How long and how fast to train, whatever the drafter."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """What a run is told beside its recipe, its target and its data.

    Attributes:
      steps: updates of the parameters.
      batch_tokens: tokens of a batch, padding included.
      accumulation: batches an update.
      learning_rate: the highest, reached after `warmup_steps` and lowered along a cosine from there.
      warmup_steps: updates over which it rises from 0; `None` is a twentieth of all, 500 at most.
      final_fraction: of the highest learning rate, at the last update.
      beta1: how long AdamW remembers gradients.
      beta2: how long it remembers their squares.
      weight_decay: AdamW's, of arrays of two axes or more.
      clip: the longest that a gradient over all parameters may be.
      seed: of initial parameters, of the order of the data, and of all that is drawn.
      checkpoint_every: updates between checkpoints; the last update makes one too.
      keep: how many of them are kept.
      evaluate_every: updates between measurements of the true acceptance, if there is something to measure it on;
        `None` is after the last one only.
      log_every: updates that are one line of the curve.
    """

    steps: int
    batch_tokens: int = 4096
    accumulation: int = 1
    learning_rate: float = 1e-3
    warmup_steps: int | None = None
    final_fraction: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    checkpoint_every: int = 100
    keep: int = 2
    evaluate_every: int | None = None
    log_every: int = 10

    def __post_init__(self):
        counts = ("steps", "batch_tokens", "accumulation", "checkpoint_every", "keep", "log_every")
        for name in (*counts, *(("evaluate_every",) if self.evaluate_every is not None else ())):
            _check(self, name, lambda x: isinstance(x, int) and x >= 1, "an integer of at least 1")
        if self.warmup_steps is None:
            object.__setattr__(self, "warmup_steps", min(self.steps // 20, 500))
        below = f"an integer from 0 to below steps ({self.steps})"
        _check(self, "warmup_steps", lambda x: isinstance(x, int) and 0 <= x < self.steps, below)
        _check(self, "seed", lambda x: isinstance(x, int) and 0 <= x < 2**32, "an integer from 0 to below 2^32")
        for name in ("learning_rate", "clip"):
            _check(self, name, lambda x: 0 < x < math.inf, "above 0")
        _check(self, "weight_decay", lambda x: 0 <= x < math.inf, "at least 0")
        _check(self, "final_fraction", lambda x: 0 <= x <= 1, "from 0 to 1")
        for name in ("beta1", "beta2"):
            _check(self, name, lambda x: 0 <= x < 1, "from 0 to below 1")


def _check(options: TrainingOptions, name: str, good, expected: str) -> None:
    value = getattr(options, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not good(value):
        raise ValueError(f"{name} must be {expected}, got {value!r}")
