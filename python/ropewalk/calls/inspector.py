"""NCCL Inspector's lines: a JSON object for each completed collective or message (format v4.0)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ropewalk.calls import shapes
from ropewalk.calls.records import Record, Report, Reports

_NAMES = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "all_to_all": "AlltoAll",
    "gather": "Gather",
    "scatter": "Scatter",
    "sendrecv": "SendRecv",
    "send": "Send",
    "receive": "Recv",
}
_SHORT_CALL_NS = 1000


def lines(reports: Reports) -> Iterator[str]:
    """Of all ranks, each in the order of its calls; barriers have none.

    Times are of the call on the host, or on the GPU where they were noted there.
    """
    hosts = len({report.host for report in reports.by_rank.values()})
    for report in reports.by_rank.values():
        header = {
            "id": f"0x{report.communicator}",
            "comm_name": "unknown",
            "rank": report.rank,
            "n_ranks": report.ranks,
            "nnodes": hosts,
        }
        metadata = {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "ropewalk",
            "dump_timestamp_us": report.written_ns // 1000,
            "hostname": report.host,
            "pid": report.process,
        }
        messages = 0
        for record in report.records:
            messages += record["call"] is None
            if record["completed_ns"] is None or record["operation"] not in _NAMES:
                continue
            number = messages if record["call"] is None else record["call"]
            kind, performance = _performance(record, report, number)
            yield json.dumps({"header": header, "metadata": metadata, kind: performance})


def _performance(record: Record, report: Report, number: int) -> tuple[str, dict[str, Any]]:
    """The key of what is told of an operation, and that."""
    message = record["call"] is None
    prefix = "p2p" if message else "coll"
    size = shapes.message_bytes(record, report.ranks)
    # Short calls on the host have one time, and took less than about a microsecond: so their rates
    # are what they had at least.
    seconds = (max(record["completed_ns"] - record["started_ns"], 0) or _SHORT_CALL_NS) / 1e9
    rate = size / seconds / 1e9
    told: dict[str, Any] = {prefix: _NAMES[record["operation"]], f"{prefix}_sn": number}
    if message:
        told["p2p_peer"] = record["peer"]
    factor = 1.0 if message else shapes.bus_factor(record["operation"], report.ranks)
    return f"{prefix}_perf", {
        **told,
        f"{prefix}_msg_size_bytes": size,
        f"{prefix}_exec_time_us": seconds * 1e6,
        f"{prefix}_timing_source": (
            "kernel_gpu" if record["memory"] == "GPU" else "collective_cpu"
        ),
        f"{prefix}_algobw_gbs": rate,
        f"{prefix}_busbw_gbs": rate * factor,
    }
