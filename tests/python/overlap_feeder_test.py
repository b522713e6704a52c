"""The feeding of two streams by benchmarks/overlap, on a GPU that works through them in its own
time."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "overlap" / "rank.py"


@functools.cache
def loaded() -> Any:
    """The program, which imports PyTorch: of all processes only that of these tests should."""
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("overlap_rank", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Gpu:
    """Streams whose steps take so many turns each; each look at an event is a turn."""

    def __init__(self) -> None:
        self.now = 0
        self.most_ahead: dict[str, int] = {}
        self._done_at: dict[str, list[int]] = {}

    def feeder(self, name: str, turns: int, total: int) -> Any:
        ends = self._done_at.setdefault(name, [])

        def step() -> None:
            ends.append(max(self.now, ends[-1] if ends else 0) + turns)
            ahead = sum(end > self.now for end in ends)
            self.most_ahead[name] = max(self.most_ahead.get(name, 0), ahead)

        class Event:
            def __init__(self, end: int) -> None:
                self._end = end

            def query(event: Any) -> bool:  # noqa: N805
                self.now += 1
                return bool(event._end <= self.now)

        return loaded().Feeder(step, total, lambda: Event(ends[-1]))

    def steps(self, name: str) -> int:
        return len(self._done_at[name])


def test_neither_stream_stops_the_other() -> None:
    gpu = Gpu()
    slow, fast = gpu.feeder("slow", 1000, 40), gpu.feeder("fast", 3, 500)
    loaded().feed_all(slow, fast)
    assert (gpu.steps("slow"), gpu.steps("fast")) == (40, 500)
    assert gpu.most_ahead["slow"] == loaded().IN_FLIGHT
    # The fast one was through long before the slow one.
    assert gpu._done_at["fast"][-1] < gpu._done_at["slow"][20]


def test_nothing_is_handed_over_while_so_many_are_ahead() -> None:
    gpu = Gpu()
    feeder = gpu.feeder("slow", 10_000, 100)
    handed = sum(feeder.feed() for _ in range(100))
    assert handed == loaded().IN_FLIGHT
    assert feeder.left == 100 - handed
