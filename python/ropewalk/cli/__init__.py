"""The command line. Each command has its own file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated, Final, NamedTuple, Optional

import typer

from ropewalk import __version__
from ropewalk.cli import console

HELP = """
Collectives over all the links that a set of hosts and GPUs has.

Examples:

\b
  ropewalk bench all_reduce --ranks 4 -b 8 -e 64M -f 2
      time all-reduce over 4 local ranks, and verify it
  ropewalk schedule make all_reduce --ranks 4 --algorithm ring -o ring.txt
  ropewalk schedule draw ring.txt -o ring.svg
      make a schedule, and draw it
  ropewalk p2p
      bandwidth and latency between the GPUs of this host
  ropewalk topo
      show what this machine is
  mpirun -n 8 ropewalk bind -- python train.py
      run each rank next to its GPU
  ropewalk plan dgx-h100 all_reduce
      the best trees on a machine, and what limits them
  ropewalk check-plugin libnccl-net-mine.so
      check whether a network plugin does what NCCL relies on
  ropewalk doctor
      try every path of this machine
  ropewalk explain all_reduce -b 1M --ranks 4
      which algorithms were considered, what each should take, and which one runs
  ropewalk calls calls-*.json
      which rank of a job is missing, and who is late
  ropewalk status
      which rank of a running job the others wait for
  ropewalk serve --metrics 9400
      metrics of running jobs for Prometheus
  ropewalk trace -o run.json -- torchrun --nproc-per-node 8 train.py
      what the hosts of a job are busy with over time
  ropewalk train --device cpu --model resnet50 --batch 2 --image 64
      what a training step takes over Ropewalk and over Gloo
  ropewalk launch --hosts hosts.txt -- python train.py
      start a job's ranks on several hosts by ssh
  ropewalk config
      list all settings
  ropewalk run -- python train.py
      run a program that uses NCCL on Ropewalk instead
  ropewalk --set ALGORITHM=ring bench all_reduce
      set one for this run

`ropewalk COMMAND --help` tells more, with examples.
"""


class _Command(NamedTuple):
    """A command: its module in this folder, and the names of its function and its help there."""

    module: str
    function: str  # or the app of a group
    help: str = "HELP"


COMMANDS: Final = {
    "bench": _Command("bench", "bench"),
    "bind": _Command("bind", "bind"),
    "calls": _Command("calls", "calls"),
    "check-plugin": _Command("check_plugin", "check_plugin"),
    "config": _Command("config", "config"),
    "doctor": _Command("doctor", "doctor"),
    "explain": _Command("explain", "explain"),
    "launch": _Command("launch_hosts", "launch"),
    "microbench": _Command("microbench", "microbench"),
    "nccl-env": _Command("nccl", "nccl_env", "ENV_HELP"),
    "nccl-graph": _Command("nccl", "nccl_graph", "GRAPH_HELP"),
    "p2p": _Command("p2p", "p2p"),
    "plan": _Command("plan", "plan"),
    "run": _Command("run", "run"),
    "schedule": _Command("schedule", "app"),
    "serve": _Command("serve", "serve"),
    "simulate": _Command("simulate", "simulate"),
    "status": _Command("status", "status"),
    "topo": _Command("topo", "topo"),
    "trace": _Command("trace", "trace"),
    "train": _Command("train", "train"),
}


# Commands that start another one.
_STARTERS: Final = ("launch", "run", "serve", "trace")


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The program with the commands called `names`, all by default."""
    app = typer.Typer(
        name="ropewalk",
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(help=HELP)(_root)
    for name in names:
        command = COMMANDS[name]
        module = import_module(f"{__name__}.{command.module}")
        found = getattr(module, command.function)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name, help=getattr(module, command.help))
            continue
        # What follows the program's name is the program's.
        context = {"allow_interspersed_args": False} if name in _STARTERS else None
        app.command(name=name, help=getattr(module, command.help), context_settings=context)(found)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ropewalk {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    set_: console.SettingOption = None,
) -> None:
    """See HELP."""
    console.pending_settings = list(set_ or [])


def _command_in(arguments: Sequence[str]) -> Optional[str]:
    """The command that is called, if no more than settings stand before it."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "--set":
            next(rest, None)
        elif not argument.startswith("--set="):
            return argument if argument in COMMANDS else None
    return None


def main() -> None:
    """The program `ropewalk`."""
    # To read and import the commands that are not called takes longer than most that are.
    command = _command_in(sys.argv[1:])
    app = make_app(COMMANDS if command is None else [command])
    app()
