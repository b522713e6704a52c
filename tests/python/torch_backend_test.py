"""`torch.distributed` over Ropewalk on the CPU, in processes; skipped without PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed")

RANKS = 2
DEADLINE_SECONDS = 120
PROGRAM = Path(__file__).parent / "torch_ranks.py"


def run(tmp_path: Path, case: str) -> None:
    """Runs `case` of torch_ranks.py on RANKS processes; fails with the first one's words."""
    store = tmp_path / "store"
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), case, str(store), str(rank), str(RANKS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        for rank, process in enumerate(processes):
            said = process.communicate(timeout=DEADLINE_SECONDS)[0]
            assert process.returncode == 0, f"rank {rank}:\n{said}"
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("case", ["operations", "point_to_point", "training", "errors"])
def test_cpu(tmp_path: Path, case: str) -> None:
    run(tmp_path, case)
