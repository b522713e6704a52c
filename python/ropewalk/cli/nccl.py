"""`ropewalk nccl-graph` and `ropewalk nccl-env`: all NICs at work for unmodified NCCL or RCCL."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.table import Table

from ropewalk import nics, topology
from ropewalk.cli import console

GRAPH_HELP = """
Write a graph file for NCCL or RCCL whose channels use all NICs evenly and near.

MACHINE is a topology's file, "here" for this host, or a short string such as
"2x(4gpu 4pcie 2cpu) 4nic". The file goes to standard output, or to -o; NCCL reads it as
NCCL_GRAPH_FILE. `ropewalk nccl-env` says what it changes and what else to set. It is for hosts that
NICs join; what it gains is computed, and was not measured on any.

Examples:

\b
  ropewalk nccl-graph here -o rings.xml
  ropewalk nccl-graph cluster.json --nic-rate h0.nic2=4.1
      a NIC that was measured at 4.1 GB/s takes a smaller share
  ropewalk nccl-graph dgx-a100 --one-rail
      for networks that join only NICs with the same number on their hosts

Exit status: 0, or 2 when the machine has no NICs that its GPUs reach.
"""

ENV_HELP = """
Say in words which NICs idle under NCCL or RCCL, what a graph file changes, and what to set.

Three ways to choose NICs are compared on the described machine: one ring's NICs for all channels
(RCCL 2.18), the least used NIC for each end (the published rewrite), and the balanced choice that
`ropewalk nccl-graph` writes. Rates are computed, for an all-gather's rings with large messages; no
job was measured with such a file.

Examples:

\b
  ropewalk nccl-env here
  ropewalk nccl-env cluster.json --graph rings.xml
      judge a file that exists, too
  ropewalk nccl-env cluster.json --json
  eval "$(ropewalk nccl-env here --export rings.xml)"
      write the file, and set the environment of this shell

Exit status: 0, or 2 when the machine has no NICs that its GPUs reach.
"""

MachineArgument = Annotated[
    str, typer.Argument(metavar="MACHINE", help="A file, here, or a short description.")
]
HostOption = Annotated[int, typer.Option("--host", help="The host whose NICs are chosen.")]
RateOption = Annotated[
    Optional[list[str]],
    typer.Option("--nic-rate", metavar="NIC=GB/S", help="A measured rate. Repeatable."),
]
ChannelsOption = Annotated[
    int, typer.Option("--channels", help="Channels; 0 for as many as NICs need.")
]
RailOption = Annotated[
    bool, typer.Option("--one-rail", help="NICs meet only those with the same number.")
]


def _rates(given: Optional[list[str]]) -> dict[str, float]:
    rates = {}
    for entry in given or []:
        name, equals, value = entry.partition("=")
        try:
            rates[name] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            console.fail(f'--nic-rate "{entry}" is not NIC=GB/s', console.USAGE)
    return rates


def nccl_graph(
    machine: MachineArgument,
    output: Annotated[
        Optional[Path], typer.Option("-o", "--output", help="Write to this file.")
    ] = None,
    host: HostOption = 0,
    nic_rate: RateOption = None,
    channels: ChannelsOption = 0,
    one_rail: RailOption = False,
) -> None:
    """See GRAPH_HELP."""
    console.apply_settings(None)
    with console.reported():
        report = nics.nic_report(
            topology.load(machine),
            host=host,
            measured=_rates(nic_rate),
            channels=channels,
            one_rail=one_rail,
        )
    if output is None:
        print(report["graph"], end="")
    else:
        console.write_file(report["graph"], output)


def nccl_env(
    machine: MachineArgument,
    graph: Annotated[
        Optional[Path], typer.Option("--graph", help="Judge this graph file, too.")
    ] = None,
    export: Annotated[
        Optional[Path],
        typer.Option("--export", help="Write the graph file here, and print export lines."),
    ] = None,
    host: HostOption = 0,
    nic_rate: RateOption = None,
    channels: ChannelsOption = 0,
    one_rail: RailOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """See ENV_HELP."""
    console.apply_settings(None)
    text = ""
    if graph is not None:
        try:
            text = graph.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text file"
            console.fail(f"{graph}: {reason}", console.USAGE)
    with console.reported():
        report = nics.nic_report(
            topology.load(machine),
            host=host,
            measured=_rates(nic_rate),
            channels=channels,
            one_rail=one_rail,
            graph=text,
        )
    if as_json:
        print(json.dumps(report, indent=2))
    elif export is not None:
        console.write_file(report["graph"], export)
        for each in _lasting(report["environment"]):
            value = str(export.absolute()) if each["value"] == "FILE" else each["value"]
            print(f"export {each['name']}={shlex.quote(value)}")
    else:
        _print(report)


def _lasting(environment: list[dict[str, str]]) -> list[dict[str, str]]:
    """What a job wants; not what only a comparison or a look needs."""
    passing = ("NCCL_ALGO", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")
    return [each for each in environment if each["name"] not in passing]


def _print(report: dict[str, Any]) -> None:
    out = console.output()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("NICs by", "busbw GB/s", "times", "farthest", "idle"):
        table.add_column(name, justify="right" if name in ("busbw GB/s", "times") else "left")
    first = report["rules"][0]["busbw_gbps"]
    for rule in report["rules"]:
        table.add_row(
            rule["name"],
            f"{rule['busbw_gbps']:.2f}",
            f"{rule['busbw_gbps'] / first:.2f}",
            rule["worst_path"],
            ", ".join(rule["idle"]) or "none",
        )
    out.print(table)
    out.print()
    for sentence in report["words"]:
        out.print(sentence)
    out.print()
    for each in report["environment"]:
        out.print(f"{each['name']}={each['value']}", style="bold", highlight=False)
        out.print(f"    {each['why']}", highlight=False)
