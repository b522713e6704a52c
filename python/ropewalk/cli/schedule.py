"""`ropewalk schedule`: make, show, check and draw schedules."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ropewalk import errors, schedule
from ropewalk.cli import console, schedule_draw, schedule_text

HELP = """
Make, show, check and draw schedules.

A schedule is a collective as data: for every rank and channel, a list of steps that each take
operands (from links, own input or output), combine them, and deliver the result (to own output, to
links). No schedule runs that the checker has not accepted.

Examples:

\b
  ropewalk schedule make all_reduce --ranks 4 --algorithm ring -o ring.txt
  ropewalk schedule show ring.txt
  ropewalk schedule check ring.txt
  ropewalk schedule draw ring.txt -o ring.svg
  ropewalk schedule make broadcast --ranks 8 --algorithm binary_tree | ropewalk schedule show -
"""

MAKE_HELP = """
Print the text form of a schedule.

Examples:

\b
  ropewalk schedule make all_reduce --ranks 4 --algorithm ring
      to the terminal
  ropewalk schedule make reduce --ranks 6 --algorithm binary_tree --root 2 -o reduce.txt
      into a file
  ropewalk schedule make all_reduce --ranks 16 --hosts 2 --algorithm hierarchical
      for ranks 0 to 7 on one host and 8 to 15 on another
  ropewalk schedule make reduce --ranks 4 --hosts 0,1,0,1 --algorithm hierarchical --root 3
      for ranks that a launcher deals out to two hosts in turn
  ropewalk plan dgx1v.json all_gather --json > plan.json
  ropewalk schedule make --plan plan.json -o plan.txt
      the schedule of a plan: operation, ranks and root are the plan's
  ropewalk schedule make --list
      the algorithms, and the operations that each can do

Exit status: 0, or 2 when no algorithm can serve the request.
"""

SHOW_HELP = """
Show a schedule rank by rank in words, with the load of every link.

FILE is a schedule's text form; - reads standard input.

Examples:

\b
  ropewalk schedule show ring.txt
  ropewalk schedule show ring.txt --rank 2
  ropewalk schedule make all_gather --ranks 5 --algorithm ring | ropewalk schedule show -

Exit status: 0, or 2 when FILE is not a schedule.
"""

CHECK_HELP = """
Prove that a schedule is right, or list what is wrong.

The checker runs all ranks on symbols: every output must hold each contribution exactly once,
nothing may be left in a link, and no order of progress may deadlock.

Examples:

\b
  ropewalk schedule check ring.txt
  ropewalk schedule make all_reduce --ranks 8 --algorithm two_shot | ropewalk schedule check -
  ropewalk schedule check ring.txt --json
      the whole report for programs

Exit status: 0 when accepted, 1 when refused, 2 when FILE is not a schedule.
"""

DRAW_HELP = """
Draw a schedule as SVG: a row per rank, time to the right, an arrow per message, a colour per block.

Examples:

\b
  ropewalk schedule draw ring.txt -o ring.svg
  ropewalk schedule make all_reduce --ranks 8 --algorithm ring | ropewalk schedule draw - -o x.svg

Exit status: 0, or 2 when FILE is not a schedule. If the checker refuses the
schedule, the drawing shows the steps before the fault.
"""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="Text form of a schedule; - is standard input.")
]


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        console.fail(f"{file}: {reason}", console.USAGE)


@app.command(help=MAKE_HELP)
def make(
    operation: Annotated[
        Optional[str], typer.Argument(metavar="[OP]", help="The operation, as all_reduce.")
    ] = None,
    ranks: Annotated[int, typer.Option("--ranks", help="Number of ranks.")] = 4,
    algorithm: Annotated[
        str, typer.Option("--algorithm", help="The algorithm; see --list.")
    ] = "ring",
    root: Annotated[int, typer.Option("--root", help="Root of rooted operations.")] = 0,
    channels: Annotated[
        int, typer.Option("--channels", help="Wanted channels; an algorithm may need more.")
    ] = 1,
    hosts: Annotated[
        Optional[str],
        typer.Option(
            "--hosts",
            metavar="N|LIST",
            help="Number of hosts with consecutive ranks, or each rank's host: 0,0,1,1.",
        ),
    ] = None,
    output: Annotated[
        Optional[Path], typer.Option("-o", "--output", help="Write to this file.")
    ] = None,
    plan: Annotated[
        Optional[str],
        typer.Option("--plan", metavar="FILE", help="Compile this plan; - is standard input."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the algorithms.")] = False,
) -> None:
    """See MAKE_HELP."""
    console.apply_settings(None)
    if plan is not None:
        if operation is not None:
            console.fail("make: a plan has its own operation; leave OP out", console.USAGE)
        with console.reported():
            try:
                made = schedule.from_plan(_read(plan))
            except errors.ArgumentError as error:
                # "plan: where and what": the file name replaces "plan".
                raise errors.ArgumentError(f"{plan}: {str(error).removeprefix('plan: ')}") from None
            console.write(made, output)
        return
    with console.reported():
        if list_:
            _print_algorithms(schedule.algorithms())
            return
        if operation is None:
            console.fail("make: which operation? For example: make all_reduce", console.USAGE)
        text = schedule.make(
            operation,
            algorithm,
            ranks,
            root=root,
            channels=channels,
            host_of_rank=None if hosts is None else _host_of_rank(hosts, ranks),
        )
        console.write(text, output)


def _host_of_rank(text: str, ranks: int) -> list[int]:
    """By rank, from "2" or "0,0,1,1"."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        console.fail(f'--hosts "{text}": write 2, or the host of each rank: 0,0,1,1', console.USAGE)
    if "," in text:
        if len(numbers) != ranks:
            console.fail(f"--hosts: {len(numbers)} hosts for {ranks} ranks", console.USAGE)
        return numbers
    if not 1 <= numbers[0] <= ranks:
        console.fail(f"--hosts {text}: must be 1 to {ranks}, the number of ranks", console.USAGE)
    return [rank * numbers[0] // ranks for rank in range(ranks)]


def _print_algorithms(found: list[dict[str, Any]]) -> None:
    out = console.output()
    if not out.is_terminal:
        for entry in found:
            print("\t".join([entry["name"], ",".join(entry["collectives"]), entry["help"]]))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("algorithm", no_wrap=True)
    table.add_column("operations")
    table.add_column("what it is")
    for entry in found:
        table.add_row(entry["name"], ", ".join(entry["collectives"]), entry["help"])
    out.print(table)


@app.command(help=SHOW_HELP)
def show(
    file: FileArgument,
    rank: Annotated[Optional[int], typer.Option("--rank", help="Only this rank.")] = None,
) -> None:
    """See SHOW_HELP."""
    console.apply_settings(None)
    text = _read(file)
    with console.reported():
        report = schedule.check(text)
        shown = schedule_text.read(text)
        if rank is not None and not 0 <= rank < shown.ranks:
            console.fail(f"--rank {rank}: there are {shown.ranks} ranks", console.USAGE)
        _print_summary(shown, report)
        _print_steps(shown, range(shown.ranks) if rank is None else [rank])


def _print_summary(shown: schedule_text.Schedule, report: dict[str, Any]) -> None:
    out = console.output()
    verdict = Text("accepted", "green") if report["accepted"] else Text("refused", "bold red")
    facts: list[tuple[str, object]] = [
        ("collective", shown.collective),
        ("algorithm", shown.algorithm),
        ("ranks", shown.ranks),
        ("parts of a unit", shown.parts),
        ("channels", ", ".join(f"{i} (weight {w})" for i, w in enumerate(shown.weights))),
        ("checker", verdict),
        ("in place", "yes" if report["in_place"] else "no"),
        ("longest path", f"{report['longest_path']} steps"),
    ]
    if shown.collective in ("broadcast", "reduce", "gather", "scatter"):
        facts.insert(3, ("root", shown.root))
    for name, value in facts:
        line = Text(f"{name:<16}", "bold")
        out.print(line + (value if isinstance(value, Text) else Text(str(value), "not bold")))
    for defect in report["defects"]:
        out.print(Text(f"  {defect}", "red"))
    links = report["links"]
    if links:
        out.print()
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for name in ("link", "channel", "messages", "data"):
            table.add_column(name, justify="left" if name == "link" else "right")
        for link in links:
            table.add_row(
                f"{link['source']} -> {link['destination']}",
                str(link["channel"]),
                str(link["messages"]),
                f"{link['units']:.4g} x count",
            )
        out.print(table)
    out.print()


def _print_steps(shown: schedule_text.Schedule, ranks: Any) -> None:
    out = console.output()
    for rank in ranks:
        tree = Tree(Text(f"rank {rank}", "bold"))
        for channel in range(len(shown.weights)):
            steps = shown.steps(rank, channel)
            branch = tree if len(shown.weights) == 1 else tree.add(f"channel {channel}")
            for index, step in enumerate(steps):
                line = Text()
                line.append(f"{index:3d}  ", "dim")
                line.append(f"block {step.block:<4d}", "cyan")
                line.append(step.sentence(), "bold" if step.finished else "")
                branch.add(line)
        out.print(tree)


@app.command(help=CHECK_HELP)
def check(
    file: FileArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """See CHECK_HELP."""
    console.apply_settings(None)
    text = _read(file)
    with console.reported():
        report = schedule.check(text)
    if as_json:
        print(json.dumps(report, indent=2))
    elif report["accepted"]:
        loads = [link["units"] for link in report["links"]]
        busiest = f"; busiest link {max(loads):.4g} x count" if loads else ""
        forms = "also in place" if report["in_place"] else "out of place only"
        print(f"accepted, {forms}; longest path {report['longest_path']} steps{busiest}")
    else:
        print("refused")
        for defect in report["defects"]:
            print(f"  {defect}")
    raise typer.Exit(console.OK if report["accepted"] else console.WRONG)


@app.command(help=DRAW_HELP)
def draw(
    file: FileArgument,
    output: Annotated[
        Optional[Path], typer.Option("-o", "--output", help="Write to this file.")
    ] = None,
) -> None:
    """See DRAW_HELP."""
    console.apply_settings(None)
    text = _read(file)
    with console.reported():
        schedule.check(text)  # its parser names line and column of what is wrong
    console.write(schedule_draw.svg(schedule_text.read(text)), output)
