"""Writes gloo_N_ranks.txt: PyTorch's own tests that pass with Gloo on N ranks, here and now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from suite import PASSED, Server

FOLDER = Path(__file__).parent


def main() -> None:
    for ranks in (2, 3, 4):
        program = [sys.executable, str(FOLDER / "suite.py"), "gloo", str(ranks), "--list"]
        names = subprocess.check_output(program, text=True).split()
        server = Server("gloo", ranks)
        passed = [name for name in names if server.run(name)["outcome"] == PASSED]
        server.close()
        version = torch.__version__.partition("+")[0]
        head = f"# PyTorch {version}: made by tests/pytorch/list_gloo.py"
        lines = [head, *sorted(passed)]
        (FOLDER / f"gloo_{ranks}_ranks.txt").write_text("\n".join(lines) + "\n")
        print(f"{ranks} ranks: {len(passed)} of {len(names)} pass")


if __name__ == "__main__":
    main()
