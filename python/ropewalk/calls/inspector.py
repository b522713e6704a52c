"""NCCL Inspector's lines: a JSON object for each completed collective (format v4.0)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ropewalk.calls import shapes
from ropewalk.calls.records import Reports

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
}


def lines(reports: Reports) -> Iterator[str]:
    """Of all ranks, each in the order of its calls; times are of the call on the host."""
    hosts = len({report.host for report in reports.by_rank.values()})
    for report in reports.by_rank.values():
        for record in report.records:
            if record["call"] is None or record["completed_ns"] is None:
                continue
            if record["operation"] not in _NAMES:
                continue
            size = shapes.message_bytes(record, report.ranks)
            seconds = max(record["completed_ns"] - record["started_ns"], 1) / 1e9
            rate = size / seconds / 1e9
            line: dict[str, Any] = {
                "header": {
                    "id": f"0x{report.communicator}",
                    "comm_name": "unknown",
                    "rank": report.rank,
                    "n_ranks": report.ranks,
                    "nnodes": hosts,
                },
                "metadata": {
                    "inspector_output_format_version": "v4.0",
                    "git_rev": "",
                    "rec_mechanism": "ropewalk",
                    "dump_timestamp_us": report.written_ns // 1000,
                    "hostname": report.host,
                    "pid": report.process,
                },
                "coll_perf": {
                    "coll": _NAMES[record["operation"]],
                    "coll_sn": record["call"],
                    "coll_msg_size_bytes": size,
                    "coll_exec_time_us": seconds * 1e6,
                    "coll_timing_source": "collective_cpu",
                    "coll_algobw_gbs": rate,
                    "coll_busbw_gbs": rate * shapes.bus_factor(record["operation"], report.ranks),
                },
            }
            yield json.dumps(line)
