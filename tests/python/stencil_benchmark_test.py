"""benchmarks/messages/stencil: a short run has the table, the figures and the picture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.thorough
def test_a_short_run(tmp_path: Path) -> None:
    build = os.environ.get("RW_BUILD_DIR")
    if not build:
        pytest.skip("RW_BUILD_DIR names no build folder; `make test` does")
    command = [sys.executable, str(ROOT / "benchmarks/messages/stencil"), "--build", build]
    command += ["--only", "alone,host,batch,hosts", "--sizes", "12,17", "--rounds", "1"]
    command += ["--table", str(tmp_path / "t"), "--json", str(tmp_path / "j")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "t").read_text()
    lines = done.stdout.splitlines()
    assert lines[0] == "one iteration on 2 ranks, microseconds (medians)"
    assert [line.split()[0] for line in lines[2:4]] == ["12", "17"]
    kept = json.loads((tmp_path / "j").read_text())
    assert set(kept["results"]) == {"alone", "host", "batch", "hosts"}
    for times in kept["results"].values():
        assert all(seconds > 0 for pair in times.values() for seconds in pair)


def test_a_form_that_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/messages/stencil"), "--build", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "benchmarks/messages/stencil: " in done.stderr
