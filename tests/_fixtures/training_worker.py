"""A training run in a separate process: `python -m tests._fixtures.training_worker OUT [WHEN]`.

WHEN it kills itself, without a chance to clean up: before the batch of that number, or while it writes a `checkpoint`.
"""

import dataclasses
import os
import signal
import sys
import threading
from pathlib import Path

import jax

from jaxspec.training.loop import train
from jaxspec.training.state import TrainingOptions
from tests._fixtures import tiny
from tests._fixtures.bigram import Bigrams, Conversations

STEPS = 8
OPTIONS = TrainingOptions(
    steps=STEPS, batch_tokens=128, learning_rate=0.1, warmup_steps=2, checkpoint_every=3, log_every=2
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclasses.dataclass(frozen=True)
class Deadly(Conversations):
    """Its batches are those of `Conversations`, until the last one of a process."""

    last: int | None = None

    def batches(self, **options):
        batches, last = super().batches(**options), self.last

        class UntilThen:
            def batch(self, step):
                if step == last:
                    die()
                return batches.batch(step)

        return UntilThen()


def watch(folder: Path) -> None:
    while not any(folder.glob(".*.partial")):
        pass
    die()


def main(out: Path, when: str | None) -> None:
    if when == "checkpoint":
        threading.Thread(target=watch, args=(out / "checkpoints",), daemon=True).start()
    data = Deadly(last=int(when) if when and when.isdecimal() else None)
    train(Bigrams(), tiny.transformer(), data, OPTIONS, out, quiet=True)


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)
    main(Path(sys.argv[1]), *(sys.argv[2:] or [None]))
