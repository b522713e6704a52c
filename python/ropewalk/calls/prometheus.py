"""Metrics of running jobs in Prometheus's text format (version 0.0.4).

Counters go on from what was asked before: the records of a rank that came since then. Names are in
base units; labels have few values: communicator, rank, operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ropewalk.calls import shapes
from ropewalk.calls.records import Report, is_known
from ropewalk.calls.status import Found
from ropewalk.calls.verdict import Verdict, judge, settled

BUCKETS: Final = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""seconds"""


@dataclass
class _Operation:
    calls: int = 0
    bytes_: int = 0
    seconds: float = 0.0
    timed: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))


@dataclass
class _Rank:
    seen: int = 0
    """newest record that is counted"""
    unseen: int = 0
    """calls whose records were overwritten before they were read"""
    open_: set[int] = field(default_factory=set)
    operations: dict[str, _Operation] = field(default_factory=dict)


class Metrics:
    """Of the jobs that update() is told of. Threads: one at a time."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, int], _Rank] = {}
        self._found = Found([])
        self._verdicts: list[Verdict] = []
        self._last: dict[str, Verdict] = {}

    def update(self, found: Found) -> None:
        """What was found now. Communicators that are gone are forgotten."""
        self._found = found
        self._verdicts = [
            settled(self._last.get(each.communicator), each) for each in found.communicators
        ]
        self._last = {each.communicator: judge(each) for each in found.communicators}
        ranks: dict[tuple[str, int], _Rank] = {}
        for reports in found.communicators:
            for number, report in reports.by_rank.items():
                key = (reports.communicator, number)
                ranks[key] = self._ranks.get(key, _Rank())
                _count(ranks[key], report)
        self._ranks = ranks

    def text(self) -> str:
        """What /metrics answers."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        found = self._found
        yield from _head("ropewalk_ranks", "gauge", "Ranks of the communicator.")
        for each in found.communicators:
            yield _line("ropewalk_ranks", {"communicator": each.communicator}, each.ranks)
        yield from _head(
            "ropewalk_ranks_answering", "gauge", "Ranks of the communicator that answer here."
        )
        for each in found.communicators:
            name = {"communicator": each.communicator}
            yield _line("ropewalk_ranks_answering", name, len(each.by_rank))
        yield from _head(
            "ropewalk_processes_silent", "gauge", "Processes with communicators that do not answer."
        )
        yield _line("ropewalk_processes_silent", {}, len(found.silent))
        yield from self._of_verdicts()
        yield from self._of_links()
        yield from self._of_operations()

    def _of_verdicts(self) -> Iterator[str]:
        verdicts = list(zip(self._found.communicators, self._verdicts))
        yield from _head(
            "ropewalk_rank_absent", "gauge",
            "1: other ranks are in a collective that this one, or its GPU, has not entered.",
        )  # fmt: skip
        for each, judged in verdicts:
            behind = {*judged.absent, *judged.enqueued}
            for rank in each.by_rank:
                labels = {"communicator": each.communicator, "rank": str(rank)}
                yield _line("ropewalk_rank_absent", labels, int(rank in behind))
        yield from _head(
            "ropewalk_rank_stalled_seconds", "gauge",
            "For how long nothing has moved in the operation that the rank is in.",
        )  # fmt: skip
        for each, _ in verdicts:
            for rank, report in each.by_rank.items():
                labels = {"communicator": each.communicator, "rank": str(rank)}
                seconds = report.waiting["seconds"] if report.waiting is not None else 0
                yield _line("ropewalk_rank_stalled_seconds", labels, seconds)
        yield from _head(
            "ropewalk_rank_late_ratio", "gauge",
            "Share of the ranks' time in the last collectives that others waited for this one.",
        )  # fmt: skip
        for each, judged in verdicts:
            for late in judged.waiting:
                labels = {"communicator": each.communicator, "rank": str(late.rank)}
                yield _line("ropewalk_rank_late_ratio", labels, late.share)
        yield from _head("ropewalk_mismatches", "gauge", "Collectives that differ between ranks.")
        for each, judged in verdicts:
            name = {"communicator": each.communicator}
            yield _line("ropewalk_mismatches", name, len(judged.mismatches))

    def _of_links(self) -> Iterator[str]:
        yield from _head(
            "ropewalk_link_bytes_total", "counter",
            "Bytes that the rank has sent to a peer, by what they went over.",
        )  # fmt: skip
        for each in self._found.communicators:
            for rank, report in each.by_rank.items():
                for link in report.links:
                    labels = {
                        "communicator": each.communicator,
                        "rank": str(rank),
                        "peer": str(link["to"]),
                        "link": str(link["over"]),
                    }
                    yield _line("ropewalk_link_bytes_total", labels, link["bytes"])

    def _of_operations(self) -> Iterator[str]:
        rows = [
            ({"communicator": name, "rank": str(number), "operation": operation}, counted)
            for (name, number), rank in self._ranks.items()
            for operation, counted in sorted(rank.operations.items())
        ]
        yield from _head("ropewalk_calls_total", "counter", "Calls that were completed.")
        for labels, counted in rows:
            yield _line("ropewalk_calls_total", labels, counted.calls)
        yield from _head(
            "ropewalk_bytes_total",
            "counter",
            "Bytes of completed calls, as nccl-tests counts them.",
        )
        for labels, counted in rows:
            yield _line("ropewalk_bytes_total", labels, counted.bytes_)
        yield from _head(
            "ropewalk_call_seconds",
            "histogram",
            "Time of calls, with waiting: on a GPU from its begin there.",
        )
        for labels, counted in rows:
            below = 0
            for bound, count in zip((*BUCKETS, float("inf")), counted.timed):
                below += count
                text = "+Inf" if bound == float("inf") else f"{bound:g}"
                yield _line("ropewalk_call_seconds_bucket", {**labels, "le": text}, below)
            yield _line("ropewalk_call_seconds_sum", labels, counted.seconds)
            yield _line("ropewalk_call_seconds_count", labels, below)
        yield from _head(
            "ropewalk_calls_unseen_total", "counter",
            "Calls whose records were overwritten before they were read (setting TRACE_RECORDS).",
        )  # fmt: skip
        for (name, number), rank in self._ranks.items():
            labels = {"communicator": name, "rank": str(number)}
            yield _line("ropewalk_calls_unseen_total", labels, rank.unseen)


def _count(rank: _Rank, report: Report) -> None:
    numbers = [int(record["id"]) for record in report.records]
    if rank.seen == 0 and numbers:
        rank.seen = numbers[0] - 1  # what was before it was asked is not counted
    elif rank.seen != 0 and numbers and numbers[0] > rank.seen + 1:
        rank.unseen += numbers[0] - rank.seen - 1
    rank.open_ = {each for each in rank.open_ if numbers and each >= numbers[0]}
    for record in report.records:
        number = int(record["id"])
        if number <= rank.seen and number not in rank.open_:
            continue
        done = record["state"] == "completed" or not is_known(record)
        if not done:
            rank.open_.add(number)
            continue
        rank.open_.discard(number)
        counted = rank.operations.setdefault(record["operation"], _Operation())
        counted.calls += 1
        counted.bytes_ += shapes.message_bytes(record, report.ranks)
        if record["started_ns"] is not None and record["completed_ns"] is not None:
            seconds = max(0, record["completed_ns"] - record["started_ns"]) / 1e9
            counted.seconds += seconds
            at = next((i for i, bound in enumerate(BUCKETS) if seconds <= bound), len(BUCKETS))
            counted.timed[at] += 1
    rank.seen = max([rank.seen, *numbers])


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _line(name: str, labels: dict[str, str], value: float) -> str:
    escaped = (
        '{}="{}"'.format(key, text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"))
        for key, text in labels.items()
    )
    inside = ",".join(escaped)
    return f"{name}{{{inside}}} {value:.12g}" if inside else f"{name} {value:.12g}"
