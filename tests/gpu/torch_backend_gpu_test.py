"""`torch.distributed` over Ropewalk on GPUs, one process for each: operations, DDP, FSDP."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from gpu_support import DEADLINE_SECONDS, need_gpus

need_gpus(2)

PROGRAM = Path(__file__).parent.parent / "python" / "process_group_rank.py"


@pytest.mark.parametrize("case", ["operations", "point_to_point", "streams", "training", "errors"])
def test_cuda(tmp_path: Path, case: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), case, str(tmp_path / "store"), str(rank), "2", "cuda"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank, process in enumerate(processes):
            said = process.communicate(timeout=DEADLINE_SECONDS)[0]
            assert process.returncode == 0, f"rank {rank}:\n{said}"
    finally:
        for process in processes:
            process.kill()
            process.wait()
