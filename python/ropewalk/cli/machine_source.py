"""How commands name a machine: the options that choose it, and reading what they name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from ropewalk import topology
from ropewalk.cli import console
from ropewalk.topology import Topology

FromOption = Annotated[
    Optional[str],
    typer.Option(
        "--from",
        metavar="FILE",
        help="A described machine: JSON, NCCL's topology XML, hwloc's XML; - is standard input.",
    ),
]
SyntheticOption = Annotated[
    Optional[str],
    typer.Option(
        "--synthetic",
        metavar="TEXT",
        help='A machine in short, as "2x(8gpu nvswitch) 8nic", or a known one, as dgx-a100.',
    ),
]


def machine(from_file: Optional[str], synthetic: Optional[str]) -> Topology:
    """The machine that the options name; this host without any."""
    if from_file is not None and synthetic is not None:
        console.fail("--from and --synthetic: one of them", console.USAGE)
    if synthetic is not None:
        return topology.synthetic(synthetic)
    if from_file == "-":
        return Topology.from_json(sys.stdin.read(), "standard input")
    if from_file is not None:
        return topology.read(Path(from_file))
    return topology.discover()


def gpu_list(text: Optional[str], of: Topology) -> Optional[list[int]]:
    """The numbers of a list such as 0,1,4-6, all of them GPUs of the machine."""
    if text is None:
        return None
    found: list[int] = []
    there = len(of.gpus)
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            ends = int(first), int(last if dash else first)
        except ValueError:
            console.fail(
                f'--gpus "{_short(text)}" is not a list of numbers, as 0,1,4', console.USAGE
            )
        # Before the range is written out: it may name a thousand million.
        absent = next((end for end in ends if end >= there), None)
        if absent is not None:
            span = f"0 to {there - 1}" if there > 0 else "which are none"
            console.fail(
                f"--gpus: there is no GPU {absent}: {of.name} has {there} GPUs, {span}",
                console.USAGE,
            )
        if ends[0] > ends[1]:
            console.fail(f'--gpus: the range "{_short(part)}" runs backwards', console.USAGE)
        found += range(ends[0], ends[1] + 1)
        if len(found) > there:
            console.fail(f'--gpus "{_short(text)}" names a GPU twice', console.USAGE)
    return found


def _short(text: str) -> str:
    return text if len(text) <= 64 else text[:61] + "..."
