"""`ropewalk topo`: what a machine is, as matrix, tree, picture, JSON, or NCCL's XML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from ropewalk import topology
from ropewalk.cli import console, topo_text
from ropewalk.cli.machine_source import FromOption, SyntheticOption, gpu_list, machine
from ropewalk.drawing import machine as machine_drawing
from ropewalk.topology import Topology

HELP = """
Show what a machine is: GPUs, NVLink, PCIe switches, NUMA nodes, NICs, and their speeds.

Without --from or --synthetic it is this host, looked at through hwloc, sysfs and NVML. What could
not be seen is said on standard error; the rest is shown. The matrix is laid out as that of
`nvidia-smi topo -m`.

Examples:

\b
  ropewalk topo
      the matrix of this host
  ropewalk topo --tree
      what hangs on what, with rates
  ropewalk topo --svg -o machine.svg
      a picture
  ropewalk topo --synthetic "2x(8gpu nvswitch) 8nic" --json -o pair.json
      a described machine, for `ropewalk plan` and others
  ropewalk topo --from dump.xml --hosts 4 --svg -o four.svg
      four hosts as the one of which NCCL wrote this dump (NCCL_TOPO_DUMP_FILE)
  ropewalk topo --nccl-xml -o topo.xml
      a file for NCCL_TOPO_FILE
  ropewalk topo --list
      machines that --synthetic knows by name

Exit status: 0, or 2 when the description is wrong or cannot be read.
"""


def topo(
    from_file: FromOption = None,
    synthetic: SyntheticOption = None,
    tree: Annotated[bool, typer.Option("--tree", help="Show a tree instead.")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="Draw a picture instead.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON of the schema gpu-topology/1 instead.")
    ] = False,
    nccl_xml: Annotated[
        bool, typer.Option("--nccl-xml", help="Print NCCL's topology XML of one host instead.")
    ] = False,
    plane: Annotated[
        Optional[str], typer.Option("--plane", help="Only the links of this plane.")
    ] = None,
    gpus: Annotated[
        Optional[str], typer.Option("--gpus", metavar="LIST", help="Only these GPUs, as 0,1,4-6.")
    ] = None,
    host: Annotated[
        Optional[int], typer.Option("--host", help="Matrix and XML: this host.")
    ] = None,
    hosts: Annotated[
        int, typer.Option("--hosts", help="So many copies of the machine, NICs joined.")
    ] = 1,
    rails: Annotated[
        bool, typer.Option("--rails", help="With --hosts: a network for each NIC number of a host.")
    ] = False,
    output: Annotated[
        Optional[Path], typer.Option("-o", "--output", help="Write to this file.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List known machines.")] = False,
) -> None:
    """See HELP."""
    console.apply_settings(None)
    if sum((tree, svg, as_json, nccl_xml, list_)) > 1:
        console.fail("--tree, --svg, --json, --nccl-xml, --list: one of them", console.USAGE)
    with console.reported():
        if list_:
            for preset in topology.presets():
                print("\t".join((preset["name"], preset["help"], preset["parts"])))
            return
        shown = machine(from_file, synthetic)
        # Those of this host, and what a file's reader left out or took for granted.
        if synthetic is None and (from_file is None or from_file.endswith(".xml")):
            console.tell(shown.assumptions)
        if hosts != 1 or rails:
            shown = shown.replicate(hosts, rails=rails)
        if plane is not None or gpus is not None:
            shown = shown.select(plane=plane, gpus=gpu_list(gpus, shown))
        if as_json:
            console.write(shown.to_json(), output)
        elif svg:
            console.write(machine_drawing.svg(shown), output)
        elif nccl_xml:
            text, notes = shown.nccl_xml(host or 0)
            console.tell(notes)
            console.write(text, output)
        elif tree:
            console.write(_tree(shown), output)
        else:
            console.write(_matrix(shown, -1 if host is None else host), output)


def _matrix(shown: Topology, host: int) -> str:
    return "\n".join(topo_text.matrix_lines(shown, shown.matrix(host))) + "\n"


def _tree(shown: Topology) -> str:
    """Styled on a terminal, plain elsewhere."""
    out = console.output()
    with out.capture() as captured:
        out.print(machine_drawing.summary(shown))
        for each in topo_text.tree(shown):
            out.print(each)
    return captured.get()
