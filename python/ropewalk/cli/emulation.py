"""Ranks on an emulated machine: the options, and the settings that they stand for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Final, Optional

import typer

from ropewalk.cli import console

EmulateOption = Annotated[
    Optional[str],
    typer.Option(
        "--emulate",
        metavar="MACHINE",
        help="Run on a described machine's links, slowed down: a file, or a name as dgx1v.",
    ),
]
GpusOption = Annotated[
    Optional[str],
    typer.Option(
        "--gpus", metavar="LIST", help="Of the emulated machine, as 0,1,4; all unless given."
    ),
]
SlowdownOption = Annotated[
    Optional[int],
    typer.Option(
        "--slowdown", metavar="F", help="Of its links; as this host keeps up unless given."
    ),
]

# The library is loaded by another process: local ranks are forked from this one before it is.
_GPUS: Final = """
import sys
import typer
from ropewalk import topology
from ropewalk.cli import console, machine_source
try:
    with console.reported():
        machine = topology.load(sys.argv[1])
        listed = machine_source.gpu_list(sys.argv[2] or None, machine)
        print(*(range(len(machine.gpus)) if listed is None else listed), sep=",")
except typer.Exit as exit:
    sys.exit(exit.exit_code)
"""


class Emulation:
    """What the command line says of it."""

    def __init__(self, machine: str, gpus: list[int], slowdown: int) -> None:
        """Notes it; 0 lets the library choose the slowdown."""
        self.machine = machine
        self.gpus = gpus
        self.slowdown = slowdown

    def settings(self) -> list[str]:
        """As for --set."""
        return [
            f"EMULATE={self.machine}",
            f"EMULATE_GPUS={','.join(map(str, self.gpus))}",
            f"EMULATE_SLOWDOWN={self.slowdown}",
        ]


def find(
    machine: Optional[str], gpus: Optional[str], slowdown: Optional[int], ranks: Optional[int]
) -> Optional[Emulation]:
    """From the options; None without --emulate.

    Args:
        machine: --emulate.
        gpus: --gpus.
        slowdown: --slowdown.
        ranks: --ranks, which must then be as many as the GPUs, or fewer than all.
    """
    if machine is None:
        for flag, value in (("--gpus", gpus), ("--slowdown", slowdown)):
            if value is not None:
                console.fail(f"{flag} {value}: belongs to --emulate", console.USAGE)
        return None
    if slowdown is not None and not 1 <= slowdown <= 10**9:
        console.fail(f"--slowdown {slowdown}: must be 1 to 1000000000", console.USAGE)
    done = subprocess.run(
        [sys.executable, "-c", _GPUS, machine, gpus or ""], capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        raise typer.Exit(done.returncode)
    found = [int(number) for number in done.stdout.strip().split(",") if number]
    if ranks is not None:
        if gpus is not None and ranks != len(found):
            console.fail(f"--ranks {ranks}: --gpus lists {len(found)}", console.USAGE)
        if ranks > len(found):
            console.fail(f"--ranks {ranks}: {machine} has {len(found)} GPUs", console.USAGE)
        found = found[:ranks]
    if not found:
        console.fail(f"--emulate {machine}: has no GPU", console.USAGE)
    # Ranks may change their folder.
    path = str(Path(machine).resolve()) if Path(machine).is_file() else machine
    return Emulation(path, found, slowdown or 0)
