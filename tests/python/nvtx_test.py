"""Ranges of operations, as a tool takes them that NVTX loads (stand_ins/nvtx_tool.c)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = (ROOT / os.environ.get("RW_BUILD_DIR", "build/release")).resolve()
TOOL = next(iter(BUILD.rglob("libnvtx_tool.so")), BUILD / "libnvtx_tool.so")
pytestmark = pytest.mark.skipif(not TOOL.exists(), reason=f"{TOOL} is not built: no NVTX headers")

PROGRAM = """
import numpy as np
import ropewalk

comms = ropewalk.init_all(1)
comm = comms[0]
data = np.ones(100, dtype="float32")
for _ in range(3):
    comm.all_reduce(data)
comm.all_reduce(np.ones(30_000, dtype="float64"))
comm.barrier()
comm.all_reduce(data, blocking=False).wait()
"""


def ran(log: Path, *, tool: bool) -> list[str]:
    environment = os.environ | {"RW_STAND_IN_NVTX_LOG": str(log)}
    if tool:
        environment["NVTX_INJECTION64_PATH"] = str(TOOL)
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=120)
    return log.read_text().splitlines() if log.exists() else []


def test_each_operation_is_a_range(tmp_path: Path) -> None:
    lines = Counter(line for line in ran(tmp_path / "log", tool=True) if "Ropewalk" in line)
    assert lines["Ropewalk push all_reduce 400"] == 4
    assert lines["Ropewalk push all_reduce 240000"] == 1
    assert lines["Ropewalk push barrier 0"] == 1
    assert lines["Ropewalk pop"] == 6
    assert sum(lines.values()) == 12


def test_without_a_tool_there_is_none(tmp_path: Path) -> None:
    assert ran(tmp_path / "log", tool=False) == []
