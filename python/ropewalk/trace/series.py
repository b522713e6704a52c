"""Values over time, for pictures: as many as can be seen, however long it takes."""

from __future__ import annotations

from typing import Final

MOST: Final = 4096


class Series:
    """Averages over equal counts of samples, of which there are at most 4,096."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.values: list[float] = []
        self._each = 1
        self._sums = [0.0, 0.0]
        self._count = 0

    def add(self, seconds: float, value: float) -> None:
        """A sample; times ascend."""
        self._sums[0] += seconds
        self._sums[1] += value
        self._count += 1
        if self._count < self._each:
            return
        self.seconds.append(self._sums[0] / self._count)
        self.values.append(self._sums[1] / self._count)
        self._sums, self._count = [0.0, 0.0], 0
        if len(self.seconds) >= MOST:
            self.seconds = [sum(pair) / 2 for pair in zip(self.seconds[::2], self.seconds[1::2])]
            self.values = [sum(pair) / 2 for pair in zip(self.values[::2], self.values[1::2])]
            self._each *= 2
