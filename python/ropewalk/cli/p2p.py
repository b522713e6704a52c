"""`ropewalk p2p`: bandwidth and latency between GPUs, as the CUDA samples print them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ropewalk import peers
from ropewalk.cli import console
from ropewalk.cli.bench import parse_size

HELP = """
Measure bandwidth and latency between all GPUs of this host, and between each and the host.

Peer access on and off, one way and both ways, by copy engine and by kernel (stores into the other
GPU's memory, loads from it). The tables are like those of p2pBandwidthLatencyTest of the CUDA
samples: row i, column j is from GPU i to GPU j; a latency by kernel is that of one load of GPU i
from the memory of GPU j. A pair that cannot is shown as "-".

Examples:

\b
  ropewalk p2p
      all tables
  ropewalk p2p -b 256M -n 50 -J p2p.json
      larger copies, more of them, also as JSON
  CUDA_VISIBLE_DEVICES=0,3 ropewalk p2p
      only these two GPUs

Exit status: 0 when it measured, 2 for a wrong command line or where there are no GPUs, 3 when the
system or CUDA failed.
"""


def table(gpus: int, row: dict[str, Any]) -> list[str]:
    """One matrix."""
    access = "enabled" if row["peer_access"] else "disabled"
    direction = f"{row['direction']} " if row["what"] == "bandwidth" else ""
    unit = row["unit"]
    title = f"{direction}{row['what']} by {row['by']}, peer access {access}"
    lines = [f"{title[0].upper()}{title[1:]} ({unit})"]
    lines.append("   D\\D" + "".join(f"{j:>9}" for j in range(gpus)))
    for i, values in enumerate(row["values"]):
        cells = "".join(f"{'-' if value is None else format(value, '.2f'):>9}" for value in values)
        lines.append(f"{i:>6}{cells}")
    return lines


def text(found: dict[str, Any]) -> list[str]:
    """All tables."""
    gpus = found["gpus"]
    lines = []
    for gpu in gpus:
        lines.append(f"Device: {gpu['device']}, {gpu['name']}, {gpu['bus_id']}")
    for i, row in enumerate(found["peer_access"]):
        for j, can in enumerate(row):
            if i != j:
                lines.append(f"Device={i} {'CAN' if can else 'CANNOT'} access peer device={j}")
    lines.append("")
    lines.append("Peer-to-peer connectivity matrix")
    lines.append("   D\\D" + "".join(f"{j:>6}" for j in range(len(gpus))))
    for i, row in enumerate(found["peer_access"]):
        lines.append(f"{i:>6}" + "".join(f"{int(can):>6}" for can in row))
    for row in found["matrices"]:
        lines.append("")
        lines += table(len(gpus), row)
    for what, unit in (("bandwidth", "GB/s"), ("latency", "us")):
        lines.append("")
        lines.append(f"Host (pinned memory) {what} ({unit})")
        lines.append(f"{'':>30}" + "".join(f"{j:>9}" for j in range(len(gpus))))
        for row in found["host"]:
            if row["what"] == what:
                label = f"{row['direction']}, {row['by']}"
                lines.append(f"{label:>30}" + "".join(f"{value:>9.2f}" for value in row["values"]))
    return lines


def p2p(
    bytes_: Annotated[
        str, typer.Option("-b", "--bytes", help="Bytes of one copy, a multiple of 16.")
    ] = "64M",
    iters: Annotated[int, typer.Option("-n", "--iters", help="Copies timed together.")] = 20,
    output_file: Annotated[
        Optional[Path],
        typer.Option("-J", "--output_file", help="Write the results to this .json file too."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of the tables.")
    ] = False,
    set_: console.SettingOption = None,
) -> None:
    """See HELP."""
    size = parse_size(bytes_, "-b")
    console.apply_settings(set_)
    with console.reported():
        found = peers.measure_peers(size, iters)
    if output_file is not None:
        console.write_file(json.dumps(found, indent=1) + "\n", output_file)
    print(json.dumps(found) if as_json else "\n".join(text(found)))
