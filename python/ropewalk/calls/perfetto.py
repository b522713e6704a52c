"""Chrome's trace events, which ui.perfetto.dev shows: a process for each rank.

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
            events += _names(report, index)
            events += [_event(record, report, index, base) for record in report.records]
    return {
        "schemaVersion": 1,
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": base,
        "traceEvents": events,
    }


def _names(report: Report, index: int) -> list[dict[str, Any]]:
    text = f"rank {report.rank} on {report.host}, process {report.process}"
    return [
        {"ph": "M", "name": "process_name", "pid": report.rank, "args": {"name": text}},
        {
            "ph": "M",
            "name": "process_sort_index",
            "pid": report.rank,
            "args": {"sort_index": report.rank},
        },
        {
            "ph": "M",
            "name": "thread_name",
            "pid": report.rank,
            "tid": index,
            "args": {"name": f"communicator {report.communicator}"},
        },
    ]


def _event(record: Record, report: Report, index: int, base: int) -> dict[str, Any]:
    begin = record["started_ns"] or record["scheduled_ns"]
    end = record["completed_ns"]
    if end is None:
        # It was under way when the records were written; or waited for the GPU, or only its launch
        # is known.
        waited = record["memory"] == "GPU" and record["state"] == "scheduled"
        end = begin if waited else report.written_ns
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
        "tid": index,
        "ts": (int(begin) - base) / 1000,
        "dur": (int(end) - int(begin)) / 1000,
        "args": arguments,
    }
