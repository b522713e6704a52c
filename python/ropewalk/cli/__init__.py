"""The command line. Each command has its own file."""

from __future__ import annotations

from typing import Annotated

import typer

from ropewalk import __version__
from ropewalk.cli import bench, config, console, p2p, schedule

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
  ropewalk config
      list all settings
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
app.command(name="p2p", help=p2p.HELP)(p2p.p2p)
app.command(name="config", help=config.HELP)(config.config)
app.add_typer(schedule.app, name="schedule", help=schedule.HELP)


def main() -> None:
    """The program `ropewalk`."""
    app()
