"""Chrome's trace events, which ui.perfetto.dev shows: a process for each rank.

Each communicator has a thread of its rank, and further ones for what overlaps.

A collective has the arguments that Kineto, PyTorch's profiler, writes for one, so that tools which
read its traces find them.
"""

from __future__ import annotations

from typing import Any

from ropewalk.calls import shapes
from ropewalk.calls.records import Record, Report, Reports


def trace_of(all_reports: list[Reports]) -> dict[str, Any]:
    """Times begin at 0; baseTimeNanoseconds is when that was, since 1970."""
    base = min(
        (
            int(record["scheduled_ns"])
            for reports in all_reports
            for report in reports.by_rank.values()
            for record in report.records
        ),
        default=0,
    )
    events: list[dict[str, Any]] = []
    for index, reports in enumerate(all_reports):
        for report in reports.by_rank.values():
            threads = _threads(report, index, len(all_reports))
            events += _names(report, threads)
            events += [
                _event(record, report, thread, base)
                for thread, records in threads.items()
                for record in records
            ]
    return {
        "schemaVersion": 1,
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": base,
        "traceEvents": events,
    }


def _end(record: Record, report: Report) -> int:
    """When it was completed, since 1970 in ns, as far as that is known."""
    if record["completed_ns"] is not None:
        return int(record["completed_ns"])
    # It was under way when the records were written; or waited for the GPU, or only its launch
    # is known.
    waited = record["memory"] == "GPU" and record["state"] == "scheduled"
    return _begin(record) if waited else report.written_ns


def _begin(record: Record) -> int:
    return int(record["started_ns"] or record["scheduled_ns"])


def _threads(report: Report, index: int, communicators: int) -> dict[int, list[Record]]:
    """The records by the numbers of threads that are shown: events of one may not overlap.

    Operations of several streams do, and messages.
    """
    threads: dict[int, list[Record]] = {index: []}
    ends = {index: 0}
    for record in sorted(report.records, key=_begin):
        free = (thread for thread, end in ends.items() if end <= _begin(record))
        thread = next(free, index + communicators * len(ends))
        threads.setdefault(thread, []).append(record)
        ends[thread] = _end(record, report)
    return threads


def _names(report: Report, threads: dict[int, list[Record]]) -> list[dict[str, Any]]:
    text = f"rank {report.rank} on {report.host}, process {report.process}"
    return [
        {"ph": "M", "name": "process_name", "pid": report.rank, "args": {"name": text}},
        {
            "ph": "M",
            "name": "process_sort_index",
            "pid": report.rank,
            "args": {"sort_index": report.rank},
        },
        *(
            {
                "ph": "M",
                "name": "thread_name",
                "pid": report.rank,
                "tid": thread,
                "args": {"name": f"communicator {report.communicator}"},
            }
            for thread in threads
        ),
    ]


def _event(record: Record, report: Report, thread: int, base: int) -> dict[str, Any]:
    begin, end = _begin(record), _end(record, report)
    arguments: dict[str, Any] = {
        "Collective name": record["operation"],
        "dtype": shapes.PYTORCH_TYPES.get(record["type"] or "", record["type"] or ""),
        "In msg nelems": shapes.input_elements(record, report.rank, report.ranks),
        "Out msg nelems": shapes.output_elements(record, report.rank, report.ranks),
        "In split size": "[]",
        "Out split size": "[]",
        # By the communicator's own numbers: it does not know of others.
        "Global rank start": 0,
        "Global rank stride": 1,
        "Group size": report.ranks,
        "Process Group Name": report.communicator,
        "Process Group Description": "ropewalk",
        "Process Group Ranks": str(list(range(report.ranks))),
        "Rank": report.rank,
        "seq": record["call"],
        "algorithm": record["algorithm"],
        "protocol": record.get("protocol"),
        "stream": record.get("stream"),
        "bytes sent": {
            f"to rank {link['to']}": link["bytes"] for link in record.get("links") or ()
        },
        "memory": record["memory"],
        "state": record["state"],
    }
    if record["operation"] == "send":
        arguments |= {"Src Rank": report.rank, "Dst Rank": record["peer"]}
    elif record["operation"] == "receive":
        arguments |= {"Src Rank": record["peer"], "Dst Rank": report.rank}
    # Readers of Kineto's traces take a GPU's time from kernels.
    kind = "collective" if record["call"] is not None else "message"
    return {
        "ph": "X",
        "cat": "kernel" if record["memory"] == "GPU" else kind,
        "name": record["operation"],
        "pid": report.rank,
        "tid": thread,
        "ts": (begin - base) / 1000,
        # Short calls on the host have one time; what has no length is shown by no viewer.
        "dur": max(end - begin, 1) / 1000,
        "args": arguments,
    }
