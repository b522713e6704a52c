"""NCCL's functions by name, as the files of nccl_names have them; dev/wheel_names.py makes them."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "nccl_names"
# NVIDIA's library, whose exports ours has.
NVIDIA = "nccl-2.32.3"


def names(file: str) -> set[str]:
    lines = (FOLDER / f"{file}.txt").read_text().splitlines()
    return {line for line in lines if not line.startswith("#")}


def users() -> list[str]:
    """The programs whose names are kept."""
    return sorted(path.stem for path in FOLDER.glob("*.txt") if path.stem != NVIDIA)


def functions() -> list[str]:
    """Each function of NCCL once: under `pnccl` they are there again."""
    return sorted(name for name in names(NVIDIA) if name.startswith("nccl"))
