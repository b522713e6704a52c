"""Schedules: made by an algorithm, proven by the checker, used by `Communicator.use_schedule`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Optional, Union

from ropewalk._library import json_of, library, text_of
from ropewalk.arguments import integer, integers
from ropewalk.arguments import text as text_argument
from ropewalk.errors import ArgumentError
from ropewalk.planning import Plan, read


def make(
    collective: str,
    algorithm: str,
    ranks: int,
    *,
    root: int = 0,
    channels: int = 1,
    host_of_rank: Optional[Sequence[int]] = None,
) -> str:
    """The text form of the schedule of `collective` ("all_reduce") by `algorithm` ("ring").

    Args:
        collective: the operation.
        algorithm: one of `algorithms()`.
        ranks: their number.
        root: of rooted operations.
        channels: wanted; an algorithm may need more.
        host_of_rank: the host of each rank, numbered from 0; without it all are on one host.
            "hierarchical" needs hosts, rings and chains go around each before they leave it.

    Raises:
        ArgumentError: unknown names, or an algorithm that cannot serve the request; the text says
            which can.
    """
    count = integer(ranks, "ranks")
    hosts = None
    if host_of_rank is not None:
        given = integers(host_of_rank, "host_of_rank")
        if len(given) != count:
            raise ArgumentError(f"host_of_rank has {len(given)} hosts for {count} ranks")
        hosts = (ctypes.c_int * max(len(given), 1))(*given)
    return text_of(
        library().rwScheduleMakeOnHosts,
        text_argument(collective, "collective"),
        text_argument(algorithm, "algorithm"),
        count,
        integer(root, "root"),
        integer(channels, "channels"),
        hosts,
    )


def from_plan(plan: Union[Plan, str]) -> str:
    """The text form of the schedule that a plan describes.

    Args:
        plan: the plan, or its JSON as `ropewalk plan --json` prints it.

    Raises:
        ArgumentError: the text is not a plan (the message names the location in the JSON), or it
            was made without its trees.
    """
    if not isinstance(plan, Plan):
        text_argument(plan, "plan")
        plan = read(plan)
    return text_of(library().rwScheduleFromPlan, plan.c_handle)


def microbench(pattern: str, test: str, *, width: int = 1, length: int = 2) -> str:
    """The text form of a micro-benchmark (src/schedule/microbench.h has the patterns).

    Args:
        pattern: "chain", "fan-in", "fan-out", "mimo" or "multi-chain".
        test: "forward", "reduce-forward" or "reduce-broadcast".
        width: sources, sinks, leaves or chains.
        length: ranks of a chain.

    Raises:
        ArgumentError: unknown names, or a test that the pattern has not.
    """
    return text_of(
        library().rwScheduleMicrobench,
        text_argument(pattern, "pattern"),
        text_argument(test, "test"),
        integer(width, "width"),
        integer(length, "length"),
    )


def check(text: str) -> dict[str, Any]:
    """Runs the checker on a text form.

    Returns:
        "accepted" (bool), "defects" (one sentence each), "in_place", "links", "longest_path", and
        the schedule itself.

    Raises:
        ArgumentError: the text is not a schedule; names line and column.
    """
    report: dict[str, Any] = json_of(library().rwScheduleCheck, text_argument(text, "text"))
    return report


def algorithms() -> list[dict[str, Any]]:
    """Name, help and collectives of every algorithm; `needs` in words, where it needs hosts."""
    found: list[dict[str, Any]] = json_of(library().rwScheduleAlgorithms)
    return found
