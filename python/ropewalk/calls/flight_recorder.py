"""PyTorch's Flight Recorder: a pickle for each rank, which torch.distributed.flight_recorder reads.

The format is that of version 2.10 (torch/csrc/distributed/c10d/FlightRecorder.hpp).
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Final

from ropewalk.calls import shapes
from ropewalk.calls.records import Record, Report, Reports

VERSION: Final = "2.10"
# The analyzer knows its own operations' names, and of backends few: nccl in every version.
_NAMES: Final = {
    "all_gather": "_all_gather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "barrier": "barrier",
}


def dump_of(report: Report) -> dict[str, Any]:
    """What the pickle of this rank holds."""
    numbered = [record["call"] for record in report.records if record["call"] is not None]
    by_state = {
        state: max(
            (
                record["call"]
                for record in report.records
                if record["call"] is not None and record["state"] in states
            ),
            default=-1,
        )
        for state, states in (
            ("last_started_collective", ("started", "completed")),
            ("last_completed_collective", ("completed",)),
        )
    }
    groups = {"0": list(range(report.ranks))}
    for record in report.records:
        if record["call"] is None:
            groups[_pair(record, report)] = sorted((report.rank, record["peer"]))
    return {
        "version": VERSION,
        "comm_lib_version": "ropewalk",
        "pg_config": {
            name: {"name": name, "desc": report.communicator, "ranks": str(ranks)}
            for name, ranks in groups.items()
        },
        "pg_status": {
            "0": {"last_enqueued_collective": max(numbered, default=-1), **by_state},
        },
        "nccl_comm_state": {},
        "entries": [_entry(record, report) for record in report.records],
    }


def write(reports: Reports, prefix: str) -> list[Path]:
    """Writes `prefix` followed by the rank, for each; gives their paths. Raises OSError."""
    paths = []
    for rank, report in reports.by_rank.items():
        path = Path(f"{prefix}{rank}")
        path.write_bytes(pickle.dumps(dump_of(report), protocol=4))
        paths.append(path)
    return paths


def _pair(record: Record, report: Report) -> str:
    """The group of a message: the analyzer expects all of a group in each operation."""
    return "{}:{}".format(*sorted((report.rank, record["peer"])))


def _entry(record: Record, report: Report) -> dict[str, Any]:
    message = record["call"] is None
    group = _pair(record, report) if message else "0"
    name = _NAMES.get(record["operation"], record["operation"])
    if message:  # by the ranks' numbers in their group
        own, peer = (0, 1) if report.rank < record["peer"] else (1, 0)
        sends = record["operation"] == "send"
        name = f"send {own}->{peer}" if sends else f"recv {own}<-{peer}"
    kind = shapes.PYTORCH_TYPES.get(record["type"] or "", record["type"] or "Float")
    start, end = record["started_ns"], record["completed_ns"]
    # A rank that is not the root has one buffer, and PyTorch names it on both sides.
    inputs = shapes.input_elements(record, report.rank, report.ranks)
    outputs = shapes.output_elements(record, report.rank, report.ranks)
    if record["operation"] in ("broadcast", "reduce"):
        inputs = outputs = int(record["count"])
    return {
        "frames": [],
        "record_id": record["id"] - 1,
        "pg_id": 0,
        "process_group": (group, report.communicator),
        "thread_id": "0",
        "thread_name": "",
        "collective_seq_id": 0 if message else record["call"],
        "p2p_seq_id": record["id"] if message else 0,
        "op_id": record["id"],
        "profiling_name": f"nccl:{name}",
        "time_created_ns": record["scheduled_ns"],
        "duration_ms": None if end is None or start is None else (end - start) / 1e6,
        "input_sizes": [[inputs]],
        "input_dtypes": [kind],
        "output_sizes": [[outputs]],
        "output_dtypes": [kind],
        "state": record["state"],
        "time_discovered_started_ns": start,
        "time_discovered_completed_ns": end,
        "retired": record["state"] == "completed",
        "timeout_ms": 600_000,
        "is_p2p": message,
    }
