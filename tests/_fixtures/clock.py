"""Replaces the clock of measurements."""


class Clock:
    """Advances by the next of the given seconds at every second call."""

    def __init__(self, seconds):
        self.seconds, self.now, self.running = iter(seconds), 0.0, False

    def __call__(self) -> float:
        if self.running:
            self.now += next(self.seconds)
        self.running = not self.running
        return self.now
