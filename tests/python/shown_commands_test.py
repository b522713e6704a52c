"""Commands that pages show run as they are written, on any host."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from thorough import thorough_but

ROOT = Path(__file__).resolve().parent.parent.parent
MACHINES = ROOT / "tests" / "topologies"
FILES = {  # what pages call the files that a reader has
    "dgx1v.json": MACHINES / "dgx1v.json",
    "cluster.json": MACHINES / "rccl-4gpu-4nic-x2.json",
    "dump.xml": MACHINES / "nccl" / "h200-2gpu.xml",
}
SHOWN = {  # the folder's commands under this heading, in the page's order
    "README.md": "## On the command line",
    "docs/planning.md": "# Planning",
    "docs/simulation.md": "# Simulation",
    "docs/topology.md": "# Machines",
    "docs/nic-balance.md": "# All NICs at work",
}
DEADLINE_SECONDS = 120


def run(commands: str, folder: Path) -> str:
    """What the commands print, all of which must succeed."""
    # Times are none of a test's business: sizes at which the same code runs.
    commands = commands.replace(".venv/bin/ropewalk", "ropewalk").replace("-e 64M", "-e 64K")
    commands = commands.replace("-b 1M -e 16M", "-b 16K -e 256K")
    script = f'set -eu\nropewalk() {{ "{sys.executable}" -m ropewalk "$@"; }}\n{commands}'
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    for error in ("Traceback", "ERROR", "wrong data"):
        assert error not in said
    return said


@pytest.mark.parametrize("page", thorough_but(SHOWN, *list(SHOWN)[1:]))
def test_commands(page: str, tmp_path: Path) -> None:
    for name, source in FILES.items():
        shutil.copy(source, tmp_path / name)
    text = (ROOT / page).read_text().partition(SHOWN[page] + "\n")[2]
    (commands,) = re.findall(r"^```sh\n(.*?)^```", text, flags=re.M | re.S)[:1]
    assert commands.count("ropewalk") >= 2
    run(commands, tmp_path)
    for made in re.findall(r"(?:-o|>|--svg|--plot) ([\w.-]+\.\w+)", commands):
        assert (tmp_path / made).stat().st_size > 0, made


@pytest.mark.thorough
def test_training(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (command,) = re.findall(
        r"^\S*ropewalk train .*\n", (ROOT / "README.md").read_text(), flags=re.M
    )
    assert "images/s" in run(command, tmp_path)
