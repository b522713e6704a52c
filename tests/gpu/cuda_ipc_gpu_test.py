"""Messages between two processes' GPU memory by the transport cuda_ipc, verified."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

NO_GPU = 77
PROGRAM = Path(os.environ.get("RW_BUILD_DIR", "build/release")).resolve() / "tests/gpu_messages"


@pytest.mark.parametrize("gpus", ["0,0", "0,1"])
@pytest.mark.parametrize("connections", [1, 4])
def test_messages_come_right(gpus: str, connections: int) -> None:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built")
    command = [str(PROGRAM), "--gpus", gpus, "--connections", str(connections), "--max", "64M"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    print(done.stdout)
    missing = done.returncode == NO_GPU or "GPU 1 of 1" in done.stderr
    if missing:
        pytest.skip(f"not the GPUs {gpus}: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "NO" not in done.stdout
