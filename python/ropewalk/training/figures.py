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
class Baseline:
    """Median batch times of one model without communication, seconds."""

    one_rank: float
    """of one rank, while the others do not run"""
    at_once: float
    """of the slowest of all ranks, which compute at once: what they share of a host costs"""


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
    """scaling efficiency: the rate over the number of ranks times that of one rank alone"""
    efficiency_of_communication: Optional[float]
    """the rate over that of as many ranks which compute at once and do not communicate"""
    consistent: bool
    """whether all ranks ended with the same parameters, to the bit"""
    steps: int


def of_ranks(
    ranks: list[list[dict[str, Any]]], batch: int, baseline: Optional[Baseline], *, together: bool
) -> Figures:
    """From what the ranks measured, in one round or several.

    Args:
        ranks: of each round, what each rank measured.
        batch: images of a step, on each rank.
        baseline: without communication, if it was measured.
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
        efficiency=None if baseline is None else baseline.one_rank / middle,
        efficiency_of_communication=None if baseline is None else baseline.at_once / middle,
        consistent=not together
        or all(rank["digest"] == of[0]["digest"] for of in ranks for rank in of),
        steps=len(slowest),
    )
