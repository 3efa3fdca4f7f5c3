"""What a person sees while it trains: one bar on stderr."""

import time

from tqdm import tqdm


class Progress:
    """Updates done, the last line of the curve, and tokens a second since the start of this process."""

    def __init__(self, step: int, steps: int, *, quiet: bool):
        """Starts at `step` of `steps`; a quiet one shows nothing."""
        self._bar = tqdm(total=steps, initial=step, desc="training", unit="step", disable=quiet, smoothing=0.1)
        self._start, self._paused, self._tokens = time.perf_counter(), 0.0, 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()

    @property
    def seconds(self) -> float:
        """Since the start, pauses left out."""
        return time.perf_counter() - self._start - self._paused

    def advance(self) -> None:
        """One more update."""
        self._bar.update()

    def tell(self, means: dict[str, float], tokens: int) -> None:
        """Shows what the last updates reported, over so many tokens."""
        self._tokens += tokens
        told = {name: f"{means[name]:.3f}" for name in ("loss", "acceptance") if name in means}
        self._bar.set_postfix(told | {"tokens/s": f"{self._tokens / self.seconds:.0f}"}, refresh=False)

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if not self._bar.disable:
            self._bar.write(text)

    def pause(self):
        """A context whose time does not count."""
        return _Pause(self)


class _Pause:
    def __init__(self, progress: Progress):
        self._progress = progress

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_) -> None:
        self._progress._paused += time.perf_counter() - self._began
