"""What the steps of a training run amount to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Optional


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


@dataclass(frozen=True)
class Figures:
    """One model over one network. Times in seconds, of the slowest rank in each step."""

    batch_median: float
    batch_p95: float
    collectives: float
    """in which at least one collective was under way; median. Contains waiting for late ranks"""
    collectives_least: float
    """the same of the rank that waited least"""
    exposed: float
    """of that, what backward computation did not hide; median. Contains such waiting, too"""
    exposed_least: float
    """the same of the rank that waited least: what communication itself adds to the step"""
    images_per_second: float
    """of all ranks, at the median"""
    efficiency: Optional[float]
    """the rate over that of as many ranks which do not communicate"""
    consistent: bool
    """whether all ranks ended with the same parameters, to the bit"""
    steps: int


def of_ranks(
    ranks: list[list[dict[str, Any]]], batch: int, baseline: Optional[float], *, together: bool
) -> Figures:
    """From what the ranks measured, in one round or several.

    Args:
        ranks: of each round, what each rank measured.
        batch: images of a step, on each rank.
        baseline: median batch time without communication, if it was measured.
        together: whether they communicated.
    """

    def over(key: str, choose: Any) -> list[float]:
        return [choose(step) for of in ranks for step in zip(*(rank[key] for rank in of))]

    slowest = over("times", max)
    middle = median(slowest)
    return Figures(
        batch_median=middle,
        batch_p95=percentile(slowest, 0.95),
        collectives=median(over("collectives", max)),
        collectives_least=median(over("collectives", min)),
        exposed=median(over("exposed", max)),
        exposed_least=median(over("exposed", min)),
        images_per_second=batch * len(ranks[0]) / middle,
        efficiency=None if baseline is None else baseline / middle,
        consistent=not together
        or all(rank["digest"] == of[0]["digest"] for of in ranks for rank in of),
        steps=len(slowest),
    )
