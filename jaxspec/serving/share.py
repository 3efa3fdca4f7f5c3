"""Divides the time of an engine between prompts and the rows that are being decoded.

share 1/2    feed  2 s     decode 1 s     decode 1 s     feed 1 s     decode ...
credit       -2            -1             0              -1
"""


class Share:
    """Says when to feed a prompt, so that this takes a share of the time. A debt is kept; a credit is not."""

    def __init__(self, share: float) -> None:
        """Takes the share of the time for prompts, above 0 and at most 1."""
        self._cost = (1.0 - share) / share
        self._credit = 0.0

    @property
    def allows(self) -> bool:
        """Whether rows have been decoded for long enough since a prompt was fed."""
        return self._credit >= 0.0

    def fed(self, seconds: float) -> None:
        """Records that a prompt was fed while rows waited."""
        self._credit -= seconds * self._cost

    def decoded(self, seconds: float) -> None:
        """Records that rows were decoded."""
        self._credit = min(0.0, self._credit + seconds)

    def forgive(self) -> None:
        """Drops the debt, since no row is waiting."""
        self._credit = 0.0
