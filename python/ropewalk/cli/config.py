"""`ropewalk config`: every setting and where its value comes from."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from ropewalk import settings
from ropewalk.cli import console

HELP = """
List every setting: type, default, help, current value, and where that came from.

A value comes from, strongest first: --set on the command line or the API, the environment
(ROPEWALK_NAME), the file (NAME=value lines in $ROPEWALK_CONF_FILE, else ~/.config/ropewalk.conf,
else /etc/ropewalk.conf), the default. An unknown or malformed setting is an error.

Examples:

\b
  ropewalk config
      the table
  ROPEWALK_TIMEOUT=30s ropewalk config --json
      the same for programs, with the source "environment"
  ropewalk config --set ALGORITHM=ring
      tries a value without running anything
  ropewalk config --tuning --ranks 4
      the cost model's constants of this machine, and what it chooses for 4 ranks
"""


def config(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    tuning: Annotated[
        bool, typer.Option("--tuning", help="Print the cost model's constants and choices.")
    ] = False,
    ranks: Annotated[int, typer.Option("--ranks", help="With --tuning: number of ranks.")] = 2,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="With --tuning: measure constants that are not known yet."),
    ] = False,
    set_: console.SettingOption = None,
) -> None:
    """See HELP."""
    console.apply_settings(set_)
    with console.reported():
        if tuning:
            # JSON either way: constants and choices have no fixed columns.
            print(json.dumps(settings.tuning(ranks, measure=measure), indent=2))
            return
        rows = settings.describe()
        if as_json:
            print(json.dumps(rows, indent=2))
            return
        _print(rows)


def _print(rows: list[dict[str, Any]]) -> None:
    out = console.output()
    if not out.is_terminal:
        for row in rows:
            fields = (row["name"], row["value"], row["source"], row["type"], row["default"])
            print("\t".join([*fields, row["allowed"], row["help"]]))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", overflow="fold")
    table.add_column("type", no_wrap=True)
    table.add_column("default", overflow="fold")
    table.add_column("help", ratio=1)
    for row in rows:
        changed = row["source"] != "default"
        allowed = f" ({row['allowed']})" if row["allowed"] else ""
        table.add_row(
            row["name"],
            row["value"],
            row["source"],
            row["type"],
            row["default"],
            row["help"] + allowed,
            style="bold" if changed else "",
        )
    out.print(table)
