"""`ropewalk doctor` and the GPU rules of `ropewalk check-plugin` on real GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from gpu_support import DEADLINE_SECONDS, need_gpus, num_gpus
from ropewalk import plugin_check

need_gpus(1)

ROOT = Path(__file__).resolve().parent.parent.parent
PLUGIN = ROOT / os.environ.get("RW_BUILD_DIR", "build/release") / "libnccl-net-ropewalk.so"


def test_doctor_tries_every_gpu_and_pair() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk", "doctor", "--only", "gpus", "--json"],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_SECONDS,
    )
    document = json.loads(done.stdout)
    paths: dict[str, dict[str, Any]] = {
        report["title"]: {check["what"]: check for check in report["checks"]}
        for report in document["paths"]
    }
    failed = [check for checks in paths.values() for check in checks.values()
              if check["outcome"] == "failed"]  # fmt: skip
    assert not failed, failed
    assert done.returncode == 0
    for gpu in range(num_gpus()):
        (checks,) = [each for title, each in paths.items() if title.startswith(f"GPU {gpu} (")]
        assert checks["host to GPU"]["gbps"] > 0
        assert checks["GPU to host"]["gbps"] > 0
        assert checks["flags and data between a kernel and the host"]["latency_us"] > 0
    for first, second in combinations(range(num_gpus()), 2):
        checks = paths[f"GPU {first} and GPU {second}"]
        assert checks[f"copy from GPU {first} to GPU {second}"]["gbps"] > 0
        assert checks[f"copy from GPU {second} to GPU {first}"]["gbps"] > 0
        assert checks["kernels that exchange flags and data through the host"]["latency_us"] > 0
        if checks["peer access"]["outcome"] == "passed":
            assert checks["kernels that exchange flags and data"]["latency_us"] > 0


def test_the_plugin_keeps_the_rules_about_gpu_memory() -> None:
    if not PLUGIN.exists():
        pytest.skip(f"{PLUGIN} is not built")
    rules = {
        part["rule"]["id"]: part["rule"]
        for part in plugin_check.check(
            str(PLUGIN), only=["gpu-transfer", "gpu-flush", "gpu-and-host"], timeout=30
        )
        if "rule" in part
    }
    assert [rule for rule in rules.values() if rule["outcome"] == "failed"] == []
    if "CUDA" in rules["gpu-transfer"]["missing"]:
        pytest.skip(rules["gpu-transfer"]["missing"])
    assert rules["gpu-and-host"]["outcome"] == "passed", rules
