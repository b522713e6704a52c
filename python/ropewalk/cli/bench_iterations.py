"""Figures over single iterations (`ropewalk bench -I 1`), as nccl-tests 2.19 computes them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Iterations:
    """Times of all iterations in microseconds, and figures over those not skipped."""

    skipped: int
    min_us: float
    max_us: float
    avg_us: float
    p50_us: float
    p95_us: float
    p99_us: float
    stdev_us: float
    times_us: list[float]
    """of each iteration, the time of the slowest rank"""
    per_process_us: list[list[float]]
    """of each process, of each iteration, the time of its slowest rank"""

    @property
    def cv_percent(self) -> float:
        """Coefficient of variation: the standard deviation in percent of the mean."""
        return self.stdev_us / self.avg_us * 100 if self.avg_us > 0 else 0.0


def summarize(per_rank_us: list[list[float]], skipped: int, ranks_each: int = 1) -> Iterations:
    """Figures over the iterations after the first `skipped`; percentiles by nearest rank.

    Args:
        per_rank_us: of each rank, of each iteration.
        skipped: how many.
        ranks_each: ranks in each process.
    """
    per_process_us = [
        _slowest(per_rank_us[first : first + ranks_each])
        for first in range(0, len(per_rank_us), ranks_each)
    ]
    slowest = _slowest(per_process_us)
    counted = sorted(slowest[skipped:])
    total = len(counted)
    mean = sum(counted) / total

    def percentile(percent: int) -> float:
        index = (total * percent + 99) // 100 - 1
        return float(counted[min(total - 1, index)])

    return Iterations(
        skipped,
        counted[0],
        counted[-1],
        mean,
        counted[total // 2],
        percentile(95),
        percentile(99),
        math.sqrt(sum((time - mean) ** 2 for time in counted) / total),
        slowest,
        per_process_us,
    )


def _slowest(times: list[list[float]]) -> list[float]:
    """Of each iteration, the longest."""
    return [max(iteration) for iteration in zip(*times)]
