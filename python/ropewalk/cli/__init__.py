"""The command line. Each command has its own file."""

from __future__ import annotations

from typing import Annotated

import typer

from ropewalk import __version__
from ropewalk.cli import (
    bench,
    bind,
    check_plugin,
    config,
    console,
    doctor,
    microbench,
    nccl,
    p2p,
    plan,
    run,
    schedule,
    simulate,
    topo,
)

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
      does a network plugin do what NCCL relies on
  ropewalk doctor
      try every path of this machine
  ropewalk config
      list all settings
  ropewalk run -- python train.py
      run a program that uses NCCL on Ropewalk instead
  ropewalk --set ALGORITHM=ring bench all_reduce
      set one for this run

`ropewalk COMMAND --help` tells more, with examples.
"""

app = typer.Typer(
    name="ropewalk",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ropewalk {__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def root(
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


app.command(name="bench", help=bench.HELP)(bench.bench)
app.command(name="bind", help=bind.HELP)(bind.bind)
app.command(name="check-plugin", help=check_plugin.HELP)(check_plugin.check_plugin)
app.command(name="config", help=config.HELP)(config.config)
app.command(name="doctor", help=doctor.HELP)(doctor.doctor)
app.command(name="microbench", help=microbench.HELP)(microbench.microbench)
app.command(name="nccl-env", help=nccl.ENV_HELP)(nccl.nccl_env)
app.command(name="nccl-graph", help=nccl.GRAPH_HELP)(nccl.nccl_graph)
app.command(name="p2p", help=p2p.HELP)(p2p.p2p)
app.command(name="plan", help=plan.HELP)(plan.plan)
# What follows the program's name is the program's.
app.command(
    name="run",
    help=run.HELP,
    context_settings={"allow_interspersed_args": False},
)(run.run)
app.add_typer(schedule.app, name="schedule", help=schedule.HELP)
app.command(name="simulate", help=simulate.HELP)(simulate.simulate)
app.command(name="topo", help=topo.HELP)(topo.topo)


def main() -> None:
    """The program `ropewalk`."""
    app()
