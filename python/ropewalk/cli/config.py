"""`ropewalk config`: every setting and where its value comes from."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ropewalk import settings
from ropewalk.cli import console

# Narrower terminals get a list: six columns side by side would be a word wide.
_TABLE_WIDTH: Final = 140

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
    if out.width < _TABLE_WIDTH:
        _print_list(out, rows)
    else:
        _print_table(out, rows)


def _print_list(out: Console, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        line = Text(f"{row['name']} = {row['value']}", "bold" if _changed(row) else "")
        line.append(f"  ({row['source']})", "cyan" if _changed(row) else "dim")
        out.print(line)
        kind = row["type"] + (f" {row['allowed']}" if row["allowed"] else "")
        about = Text(f"{row['help']}; {kind}; default {row['default'] or 'empty'}")
        out.print(Padding(about, (0, 0, 0, 4)))


def _print_table(out: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("setting", "value", "from", "type", "default"):
        table.add_column(name, no_wrap=name in ("setting", "type"), overflow="fold")
    table.add_column("help", ratio=1)
    for row in rows:
        allowed = f" ({row['allowed']})" if row["allowed"] else ""
        fields = [row[key] for key in ("name", "value", "source", "type", "default")]
        table.add_row(
            *(Text(field) for field in fields),
            Text(row["help"] + allowed),
            style="bold" if _changed(row) else "",
        )
    out.print(table)


def _changed(row: dict[str, Any]) -> bool:
    return bool(row["source"] != "default")
