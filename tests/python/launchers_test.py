"""Real launchers: each of their processes is one rank, without any flag."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = (
    *(sys.executable, "-m", "ropewalk", "bench", "all_reduce"),
    *("-b", "8", "-e", "512", "-f", "8", "-n", "5", "-w", "1"),
)
LAUNCHERS = {
    "mpirun": ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"),
    "mpiexec.mpich": ("mpiexec.mpich", "-n", "2"),
    "srun": ("srun", "--overcommit", "-n", "2"),
}


def works(launcher: str) -> bool:
    """Whether it is there and starts programs: srun needs a cluster."""
    if shutil.which(launcher) is None:
        return False
    try:
        done = subprocess.run(
            [*LAUNCHERS[launcher], "true"], capture_output=True, check=False, timeout=20
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_process_is_a_rank(launcher: str) -> None:
    if not works(launcher):
        pytest.skip(f"{launcher} does not start programs here")
    done = subprocess.run(
        [*LAUNCHERS[launcher], *BENCH], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("# Using devices") == 1  # rank 0 alone prints
    ranks = [line for line in done.stdout.splitlines() if line.startswith("#  Rank")]
    assert [line.split()[2] for line in ranks] == ["0", "1"]
    assert "# Out of bounds values : 0 OK" in done.stdout


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_pytorchs_example_is_one_job(launcher: str) -> None:
    pytest.importorskip("torch.distributed")
    if not works(launcher):
        pytest.skip(f"{launcher} does not start programs here")
    example = Path(__file__).parents[2] / "examples" / "python" / "torch_distributed.py"
    done = subprocess.run(
        [*LAUNCHERS[launcher], sys.executable, str(example)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "2 ranks: gradients equal: True"
