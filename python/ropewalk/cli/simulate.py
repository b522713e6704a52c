"""`ropewalk simulate`: how long a plan or a schedule takes on a described machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.table import Table

from ropewalk import simulation, topology
from ropewalk.cli import console, simulate_draw

HELP = """
Play a plan or a schedule on a described machine: time, and how busy each link is.

FILE is a plan's JSON (`ropewalk plan --json`) or a schedule's text form; - is standard input. A
plan names its links itself; a schedule needs --topology, and its messages take the paths that a
library without a plan would take. Simulation is at the level of flows: links limit, processors do
not.

With SimGrid installed its network model plays, else the built-in one (max-min fair shares). That
one also plays what SimGrid would need long for. Which it was, and why, is said.

Chunks are made larger until no more than --most-messages are moved: a message then takes longer
to fill its trees, and the ratio falls. With --chunk the size is kept up to 10^8 messages.

Examples:

\b
  ropewalk plan dgx1v.json all_gather --json > plan.json
  ropewalk simulate plan.json --bytes 1G
  ropewalk simulate plan.json --topology dgx1v.json --bytes 64M --svg links.svg
      with the latencies of the file, and a picture of all links over time
  ropewalk schedule make all_reduce --ranks 8 -o ring.txt
  ropewalk simulate ring.txt --topology dgx1v.json
  ropewalk schedule make reduce --ranks 16 --hosts 2 --algorithm hierarchical -o reduce.txt
  ropewalk simulate reduce.txt --topology "2x(8gpu nvswitch) 8nic"

Exit status: 0, or 2 when FILE or the topology is wrong.
"""


def decimal_size(text: str, flag: str) -> float:
    """Bytes from "1000", "64M", "1.5G": powers of 1000, as GB/s count."""
    units = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    digits, unit = text.strip(), 1.0
    if digits[-1:].upper() in units:
        unit, digits = units[digits[-1].upper()], digits[:-1]
    try:
        size = float(digits) * unit
    except ValueError:
        size = -1
    if not 0 < size < 1e18:
        console.fail(f'{flag} "{text}" is not a size; write 1000, 64M or 1.5G', console.USAGE)
    return size


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        console.fail(f"{file}: {reason}", console.USAGE)


def simulate(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A plan or a schedule; - is standard input.")
    ],
    machine: Annotated[
        Optional[str],
        typer.Option("--topology", metavar="MACHINE", help="A file, here, or a short description."),
    ] = None,
    bytes_: Annotated[
        str, typer.Option("--bytes", help="Size of the message; K, M, G are powers of 1000.")
    ] = "1G",
    chunk: Annotated[
        Optional[str], typer.Option("--chunk", help="Size of a chunk; else the best.")
    ] = None,
    most_messages: Annotated[
        Optional[str],
        typer.Option(
            "--most-messages",
            metavar="N",
            help="Larger chunks until no more are moved: 400K; with --chunk 100M.",
        ),
    ] = None,
    engine: Annotated[str, typer.Option("--engine", help="auto, simgrid or builtin.")] = "auto",
    unpaced: Annotated[
        bool, typer.Option("--unpaced", help="A plan's trees share links with whoever comes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    svg: Annotated[
        Optional[Path], typer.Option("--svg", help="Draw the links over time into this file.")
    ] = None,
) -> None:
    """See HELP."""
    console.apply_settings(None)
    if engine not in simulation.ENGINES:
        known = ", ".join(simulation.ENGINES)
        console.fail(f'--engine "{engine}": known are {known}', console.USAGE)
    size = decimal_size(bytes_, "--bytes")
    chunk_bytes = 0.0 if chunk is None else decimal_size(chunk, "--chunk")
    most = None if most_messages is None else decimal_size(most_messages, "--most-messages")
    subject = _read(file)
    with console.reported():
        described = None if machine is None else topology.load(machine)
        report = simulation.simulate(
            subject,
            described,
            message_bytes=size,
            chunk_bytes=chunk_bytes,
            paced=not unpaced,
            most_messages=None if most is None else max(1.0, most),
            engine=engine,
            subject_name=file,
            topology_name=machine or "topology",
            tell=lambda words: print(f"ropewalk: {words}", file=sys.stderr, flush=True),
        )
    if svg is not None:
        console.write_file(simulate_draw.svg(report), svg)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)


def _print(report: dict[str, Any]) -> None:
    out = console.output()
    links = sorted(report["links"], key=lambda link: -link["utilisation"])
    facts = [
        ("what", f"{report['collective']} by {report['algorithm']}, {report['ranks']} ranks"),
        ("machine", report["topology"]),
        ("engine", report["engine"]),
        ("message", f"{report['bytes']:.4g} bytes in {report['messages']:.0f} messages"),
        ("time", f"{report['seconds'] * 1e6:.1f} us"),
        ("algbw", f"{report['algbw_gbps']:.3f} GB/s"),
        ("analytic", f"{report['analytic_gbps']:.3f} GB/s without latencies"),
        ("ratio", f"{report['ratio']:.3f}"),
        ("links in use", str(len(links))),
    ]
    for name, value in facts:
        out.print(f"{name:<14}{value}", highlight=False)
    out.print()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("busiest links", "type", "GB/s", "bytes", "in use"):
        table.add_column(name, justify="left" if name in ("busiest links", "type") else "right")
    for link in links[:12]:
        table.add_row(
            f"{link['source']} -> {link['destination']}",
            link["type"],
            f"{link['capacity']:g}",
            f"{link['bytes']:.4g}",
            f"{link['utilisation']:.1%}",
        )
    out.print(table)
