"""`ropewalk explain`: why an operation runs by the algorithm that it does."""

from __future__ import annotations

import functools
import json
from typing import Annotated, Any, Final, Optional

import typer
from rich.table import Table

from ropewalk import joining
from ropewalk.cli import bench_device, console, emulation, launch
from ropewalk.cli.bench import parse_size
from ropewalk.cli.bench_plan import OPERATIONS
from ropewalk.communicator import Communicator

HELP: Final = """
Say why an operation runs by the algorithm that it does.

It is one on host memory, or with --device cuda on the memory of GPUs, one for each rank. The bound
and the links that limit are then those of the machine that was found.

The candidates are priced by the cost model with the constants measured on this machine
(`ropewalk config --tuning`). Local ranks are started for it, so that it is known how they are
linked; under torchrun, mpirun or srun each process is one rank.

Where TOPOLOGY names the machine, its plans are candidates beside the shapes, the candidates are
priced on its links, and the bound and the links that limit the chosen one are named.

What takes longer to plan than a quarter of a second is waited for here, so that the answer is the
final one. With `--set PLANNING=background`, as in programs, it says what was chosen meanwhile.

The size is that of `ropewalk bench -b`. A communicator chooses once for all sizes between two
powers of two: near a border, what runs may not be the cheapest for this very size.

Examples:

\b
  ropewalk explain all_reduce -b 1M --ranks 4
      a table of the candidates
  ropewalk explain broadcast -b 64K --ranks 8 --root 2 --json
      the same for programs
  ropewalk explain broadcast -b 64M --emulate dgx1v --gpus 0,1,3
      on three GPUs of a machine that need not be there
  ropewalk explain all_reduce -b 1M --ranks 4 --set LINKS=network
      as if each rank were on a host of its own
  ropewalk explain all_reduce -b 64M --ranks 4 --device cuda
      on four GPUs
  ropewalk explain all_reduce -b 64M --ranks 8 --set TOPOLOGY=dgx1v
      as if the ranks were the GPUs of a DGX-1

Exit status: 0, 2 for a wrong command line, another value when a rank failed or was killed.
"""


def explain(
    operation: Annotated[str, typer.Argument(metavar="OP", help="all_reduce and so on")],
    size: Annotated[str, typer.Option("-b", "--size", help="Message size, as 64K or 1M.")] = "1M",
    ranks: Annotated[
        Optional[int], typer.Option("--ranks", "-n", help="Local ranks; 2 without a launcher.")
    ] = None,
    root: Annotated[int, typer.Option("--root", help="Of rooted operations.")] = 0,
    device: Annotated[
        str, typer.Option("--device", help="Whose memory: host, or cuda, a GPU for each rank.")
    ] = "host",
    emulate: emulation.EmulateOption = None,
    gpus: emulation.GpusOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    set_: console.SettingOption = None,
) -> None:
    """See HELP."""
    name = operation.replace("-", "_")
    if name not in OPERATIONS:
        console.fail(f"OP {operation}: is none of {', '.join(OPERATIONS)}", console.USAGE)
    message_bytes = parse_size(size, "-b")
    launched = launch.launched_processes()
    if launched and ranks is not None:
        console.fail("--ranks: a launcher started this job already", console.USAGE)
    if ranks is not None and ranks < 1:
        console.fail(f"--ranks {ranks}: must be positive", console.USAGE)
    if device not in ("host", "cuda"):
        console.fail(f"--device {device}: is none of host, cuda", console.USAGE)
    if device == "cuda" and emulate is not None:
        console.fail("--device cuda: ranks of --emulate work on host memory", console.USAGE)
    emulated = emulation.find(emulate, gpus, None, ranks)
    count = launched or (ranks or 2 if emulated is None else len(emulated.gpus))
    if not 0 <= root < count:
        console.fail(f"--root {root}: is outside 0 to {count - 1}", console.USAGE)

    if device == "cuda":
        bench_device.choose(device, None if launched else count)

    def body(comms: list[Communicator]) -> int:
        if device == "cuda":
            for comm in comms:
                comm.attach(joining.device_number(device, comm.rank))
        if comms[0].rank == 0:
            found = comms[0].explain(name, message_bytes, root)
            if as_json:
                print(json.dumps(found, indent=2))
            else:
                _print(found)
        return console.OK

    given = console.waiting_for_plans(
        [*([] if emulated is None else emulated.settings()), *(set_ or [])]
    )
    apply = functools.partial(console.apply_settings, given)
    if launched:
        apply()
        with console.reported(), joining.init() as comm:
            body([comm])
        return
    raise typer.Exit(launch.run_local(count, body, prepare=apply, pinned=False))


def _in_words(links: list[dict[str, Any]]) -> str:
    """The first of the links, and how many more there are."""
    shown = [f"{each['link']} ({each['type']}, {each['capacity']:g} GB/s)" for each in links[:4]]
    more = len(links) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def nics_in_words(channels: list[dict[str, Any]]) -> str:
    """The first rank's NICs, each with its channels and their share of the data."""
    of_nic: dict[str, list[dict[str, Any]]] = {}
    for each in channels:
        of_nic.setdefault(each["nic"], []).append(each)
    words = []
    for nic, carried in of_nic.items():
        numbers = ", ".join(str(each["channel"]) for each in carried)
        share = sum(each["share"] for each in carried)
        far = f", at distance {carried[0]['distance']}" if carried[0]["distance"] else ""
        words.append(f"{nic} {share:.0%} (channels {numbers}{far})")
    return "; ".join(words)


def forms_in_words(copies: dict[str, Any]) -> list[str]:
    """Each form that calls try, the chosen one first."""
    words = []
    for form in copies["forms"]:
        now = all(form[key] == copies[key] for key in ("algorithm", "by_address"))
        way = "by address" if form["by_address"] else "through slots"
        words.append(f"{form['algorithm']} {way}{' (the next call)' if now else ''}")
    return words


def _print(found: dict[str, Any]) -> None:
    links = "1 host" if found["network"] is None else f"{found['hosts']} hosts, {found['network']}"
    out = console.output()
    out.print(f"{found['operation']} of {found['bytes']} bytes, {found['ranks']} ranks on {links}")
    if found["network_slots"] is not None:
        out.print(f"slots of links between hosts: {found['network_slots']}")
    table = Table(box=None, pad_edge=False)
    planned = any(each["algbw_gbps"] is not None for each in found["candidates"])
    rates = ("GB/s at most",) if planned else ()
    spread = found["nic_rule"] is not None
    channels = ("channels", "NICs") if spread else ()
    for title in ("algorithm", *channels, "predicted us", *rates, "chunk bytes", "copies"):
        left = title in ("algorithm", "NICs", "copies")
        table.add_column(title, justify="left" if left else "right")
    for each in found["candidates"]:
        rate = each["algbw_gbps"]
        table.add_row(
            each["algorithm"],
            *((str(each["channels"]), each["nic_rule"]) if spread else ()),
            f"{each['predicted_us']:.3g}",
            *(("-" if rate is None else f"{rate:.4g}",) if planned else ()),
            str(each["chunk_bytes"]),
            "by address" if each["by_address"] else "staged",
        )
    out.print(table)
    out.print(f"machine: {found['machine']['name']}, {found['machine']['origin']}")
    if found["nic_gbps"]:
        out.print(f"NICs of each host, GB/s: {', '.join(f'{x:.3g}' for x in found['nic_gbps'])}")
    if found["bound"] is not None:
        out.print(f"bound: {found['bound']['algbw_gbps']:.4g} GB/s; {found['bound']['words']}")
    if found["limiting_links"]:
        out.print(f"limits {found['chosen']}: {_in_words(found['limiting_links'])}")
    planning = found["planning"]
    if planning is not None and planning["state"] != "in use":
        then = "" if planning["later"] is None else f"; then {planning['later']} runs"
        out.print(f"planning {', '.join(planning['algorithms'])}: {planning['state']}{then}")
    chunks = found["chunks"]
    if chunks is not None:
        tuned = "" if chunks["state"] == "fixed" else ", tuned while such calls are repeated"
        out.print(f"chunks: {chunks['bytes']} bytes{tuned}")
    if found["copies"] is not None:
        forms = ", ".join(forms_in_words(found["copies"]))
        out.print(f"while such calls are repeated, they try: {forms}")
    over = f" over {found['channels']} channels" if spread else ""
    if found["channel_nics"]:
        out.print(f"NICs by the rule {found['nic_rule']}: {nics_in_words(found['channel_nics'])}")
    out.print(f"runs: {found['chosen']}{over}, by {found['chosen_by']}")
    if found["copy_engines"]:
        out.print("with its output in a symmetric window: by copy engines (setting COPY_ENGINES)")
