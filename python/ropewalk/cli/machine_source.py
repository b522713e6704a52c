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


def gpu_list(text: Optional[str]) -> Optional[list[int]]:
    """The numbers of a list such as 0,1,4-6."""
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            found += range(int(first), int(last if dash else first) + 1)
        except ValueError:
            console.fail(f'--gpus "{text}" is no list of numbers, as 0,1,4', console.USAGE)
        if len(found) > 65536:
            console.fail(f'--gpus "{text}" names too many', console.USAGE)
    return found
