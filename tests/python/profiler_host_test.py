"""Profiler plugins of others under Ropewalk: its own plugin for NCCL, by each version, told of its
own calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BUILD = (ROOT / os.environ.get("RW_BUILD_DIR", "build/release")).resolve()
WHOLE = BUILD / "libnccl-profiler-ropewalk.so"
pytestmark = pytest.mark.skipif(
    not list(BUILD.rglob("libone_profiler_v1.so")), reason="the stand-ins are not built"
)

# The records of the communicators themselves are not written: the plugin's have their place.
PROGRAM = """
import threading
import numpy as np
import ropewalk

ropewalk.settings.set("TRACE_FILE", "")


def run(comm):
    data = np.ones(100, dtype="float32")
    for _ in range(2):
        comm.all_reduce(data)
    comm.broadcast(np.ones(7, dtype="int64"), root=1)
    comm.barrier()
    if comm.rank == 0:
        comm.send(data[:5], 1)
    else:
        comm.recv(data[:5], 0)
    comm.finalize()


threads = [threading.Thread(target=run, args=(comm,)) for comm in ropewalk.init_all(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def told(folder: Path, plugin: Path | str, debug: str = "WARN") -> tuple[list[Any], str]:
    """What the plugin wrote for each rank, and what the program said."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ
        | {
            "ROPEWALK_DEBUG": debug,
            "ROPEWALK_PROFILER_PLUGIN": str(plugin),
            "ROPEWALK_TRACE_FILE": str(folder / "calls-%r.json"),
            "RW_WHOLE_PROFILER_PLUGIN": str(WHOLE),
        },
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))], done.stderr


@pytest.mark.parametrize("version", range(1, 7))
def test_a_plugin_is_told_of_the_calls(version: int, tmp_path: Path) -> None:
    (plugin,) = BUILD.rglob(f"libone_profiler_v{version}.so")
    reports, said = told(tmp_path, plugin)
    assert len(reports) == 2, said
    for rank, report in enumerate(reports):
        assert (report["rank"], report["ranks"]) == (rank, 2 if version >= 4 else rank + 1)
        seen = [
            (each["operation"], each["count"], each["type"], each["root"], each["peer"])
            for each in report["records"]
        ]
        # A barrier is an all-reduce of nothing there.
        assert seen == [
            ("all_reduce", 100, "float32", None, None),
            ("all_reduce", 100, "float32", None, None),
            ("broadcast", 7, "int64", 1, None),
            ("all_reduce", seen[3][1], "int8", None, None),
            ("send" if rank == 0 else "receive", 5, "float32", None, 1 - rank),
        ]
        assert all(each["algorithm"] for each in report["records"][:4])
        if version < 3:  # these are not told of kernels
            continue
        for each in report["records"]:
            assert each["state"] == "completed", each
            assert each["completed_ns"] >= each["started_ns"] >= each["scheduled_ns"]


def test_a_plugin_that_cannot_be_loaded_harms_nothing(tmp_path: Path) -> None:
    reports, said = told(tmp_path, tmp_path / "none.so")
    assert reports == []
    assert "none.so was not loaded" in said
    _, said = told(tmp_path, "libc.so.6")
    assert "libc.so.6 has no profiler for NCCL" in said


def test_what_a_plugin_says_is_logged(tmp_path: Path) -> None:
    (plugin,) = BUILD.rglob("libtalking_profiler.so")
    _, said = told(tmp_path, plugin)
    for rank in range(2):
        assert f"WARN profiler plugin: rank {rank} of 2 warns of a full disk\n" in said
    assert "tells something" not in said
    _, said = told(tmp_path, plugin, "INFO")
    assert "INFO profiler plugin: rank 1 tells something\n" in said
    assert "never" not in said


def test_texts_stay_where_a_plugin_found_them(tmp_path: Path) -> None:
    """NCCL's are literals: NVIDIA's example plugin keeps their addresses until the end."""
    (plugin,) = BUILD.rglob("libkeeping_profiler.so")
    _, said = told(tmp_path, plugin)
    for rank in range(2):
        kept = [
            line.partition(" kept ")[2] for line in said.splitlines() if f"rank {rank} kept" in line
        ]
        assert kept[:3] == [
            "AllReduce ncclFloat32 RING SIMPLE",
            "AllReduce ncclFloat32 RING SIMPLE",
            "Broadcast ncclInt64 RING SIMPLE",
        ]
        assert len(kept) == 4  # and the barrier
