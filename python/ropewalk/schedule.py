"""Schedules: made by an algorithm, proven by the checker, used by `Communicator.use_schedule`."""

from __future__ import annotations

from typing import Any, Union

from ropewalk._library import json_of, library, text_of
from ropewalk.arguments import integer
from ropewalk.arguments import text as text_argument
from ropewalk.planning import Plan, read


def make(collective: str, algorithm: str, ranks: int, *, root: int = 0, channels: int = 1) -> str:
    """The text form of the schedule of `collective` ("all_reduce") by `algorithm` ("ring").

    Raises:
        ArgumentError: unknown names, or an algorithm that cannot serve the request; the text says
            which can.
    """
    return text_of(
        library().rwScheduleMake,
        text_argument(collective, "collective"),
        text_argument(algorithm, "algorithm"),
        integer(ranks, "ranks"),
        integer(root, "root"),
        integer(channels, "channels"),
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
    """Name, help and collectives of every algorithm; `needs` in words, where `make` lacks it."""
    found: list[dict[str, Any]] = json_of(library().rwScheduleAlgorithms)
    return found
