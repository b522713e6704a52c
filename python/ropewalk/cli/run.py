"""`ropewalk run`: a program that was written for NCCL, on Ropewalk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ropewalk import _library
from ropewalk.cli import console

HELP = """
Run a program that uses NCCL on Ropewalk's libnccl.so.2, unmodified.

The program gets Ropewalk's library by LD_PRELOAD, so it needs no change and none is kept; programs
that it starts get it too. A program that is statically linked with NCCL keeps NVIDIA's. NCCL_DEBUG,
NCCL_DEBUG_SUBSYS, NCCL_DEBUG_FILE and NCCL_SOCKET_IFNAME mean what they mean to NCCL, and every
setting of `ropewalk config` counts.

The exit status is the program's; 2 when Ropewalk was built without CUDA, 126 or 127 when the
program cannot be started.

Examples:

\b
  ropewalk run -- python train.py
      a program with one GPU or several
  ropewalk run -- torchrun --nproc-per-node 2 train.py
      a launcher: its processes get the library too
  NCCL_DEBUG=VERSION ropewalk run -- python train.py
      says in the log whose library runs
"""


def nccl_library() -> Path:
    """Where Ropewalk's libnccl.so.2 is, or would be: by the library that the package uses.

    In a wheel and in a build folder beside it, installed in a folder of its own.
    """
    folder = Path(_library.path()).resolve().parent
    paths = (folder / "libnccl.so.2", folder / "ropewalk" / "libnccl.so.2")
    return next((path for path in paths if path.exists()), paths[0])


def environment_with(library: Path, environment: dict[str, str]) -> dict[str, str]:
    """`environment` with the library loaded before all others."""
    before = environment.get("LD_PRELOAD", "")
    return {**environment, "LD_PRELOAD": f"{library}:{before}" if before else str(library)}


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="The program and its arguments, after --."),
    ],
    set_: console.SettingOption = None,
) -> None:
    """See HELP."""
    environment = dict(os.environ)
    # The program reads settings from its environment; bad ones are told here.
    console.apply_settings(set_)
    for entry in [*console.pending_settings, *(set_ or [])]:
        name, _, value = entry.partition("=")
        environment["ROPEWALK_" + name.upper().removeprefix("ROPEWALK_")] = value
    library = nccl_library()
    if not library.exists():
        console.fail(
            f"{library} is not there: this Ropewalk was built without CUDA. Build it where nvcc is "
            "found",
            console.USAGE,
        )
    try:
        os.execvpe(command[0], command, environment_with(library, environment))
    except FileNotFoundError:
        console.fail(f"{command[0]}: not found", 127)
    except OSError as error:
        console.fail(f"{command[0]}: {error.strerror}", 126)
