"""The cost model's constants are measured once for a machine's GPUs, and kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_support import DEADLINE_SECONDS, need_gpus

need_gpus(2)


def bench(file: Path, **settings: str) -> str:
    environment = {
        **os.environ,
        "ROPEWALK_TUNE": "1",
        "ROPEWALK_TUNING_FILE": str(file),
        **{f"ROPEWALK_{name}": value for name, value in settings.items()},
    }
    command = ["bench", "all_reduce", "--device", "cuda", "--ranks", "2", "-b", "64", "-e", "64K"]
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk", *command, "-f", "32"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# Out of bounds values : 0 OK" in done.stdout
    return done.stderr


def entries(file: Path) -> dict[str, dict[str, object]]:
    kept = json.loads(file.read_text())["entries"]
    return {key: value for key, value in kept.items() if " x " in key}


def test_measured_once(tmp_path: Path) -> None:
    file = tmp_path / "tuning.json"
    bench(file)
    kept = entries(file)
    assert len(kept) == 1
    (constants,) = kept.values()
    assert float(str(constants["link_rate_Bps"])) > 1e9
    # What is there is used, and not measured again.
    changed = json.loads(file.read_text())
    (name,) = kept
    changed["entries"][name]["link_rate_Bps"] = 1.5e9
    file.write_text(json.dumps(changed))
    bench(file)
    assert entries(file)[name]["link_rate_Bps"] == 1.5e9


def test_without_peer_access_apart(tmp_path: Path) -> None:
    file = tmp_path / "tuning.json"
    bench(file)
    bench(file, PEER_ACCESS="0")
    assert len(entries(file)) == 2


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 1}'])
def test_a_useless_file_is_replaced(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tuning.json"
    file.write_text(content)
    bench(file)
    assert len(entries(file)) == 1
