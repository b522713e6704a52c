"""Rows, aims, the text table and the picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from networks import NETWORKS
from table import size_axis, size_text, summary

COLOURS = {"socket": "#009E73", "shm": "#0072B2", "cuda_ipc": "#D55E00", "sisci": "#CC79A7"}
TITLES = {
    "socket": "NCCL's sockets",
    "shm": "Ropewalk shm",
    "cuda_ipc": "Ropewalk cuda_ipc",
    "sisci": "Ropewalk sisci",
}
SMALL = 1 << 18


@dataclass(frozen=True)
class Key:
    operation: str
    size: int


Times = dict[tuple[Key, str], list[float]]
Errors = dict[tuple[Key, str], str]


def rows_of(times: Times, errors: Errors, ranks: int) -> list[dict[str, Any]]:
    """One row for each key, in the order of measuring."""
    rows: list[dict[str, Any]] = []
    for key in dict.fromkeys([*(key for key, _ in times), *(key for key, _ in errors)]):
        row: dict[str, Any] = {"operation": key.operation, "size": key.size}
        for network in NETWORKS:
            measured = times.get((key, network))
            if (key, network) in errors:
                row[network] = {"error": errors[key, network]}
            elif measured:
                row[network] = summary(measured, key.size, key.operation, ranks)
        rows.append(row)
    return rows


def progress(key: Key, times: Times, errors: Errors, networks: list[str]) -> str:
    cells = []
    for network in networks:
        measured = times.get((key, network))
        shown = f"{measured[-1]:.1f} us" if measured else errors.get((key, network), "-")
        cells.append(f"{network} {shown}")
    return f"{key.operation} {size_text(key.size)}: {', '.join(cells)}"


def _find(result: dict[str, Any], operation: str, size: int, network: str) -> dict[str, float]:
    for row in result["rows"]:
        if row["operation"] == operation and row["size"] == size:
            return dict(row.get(network, {}))
    return {}


def aims(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The aims whose figures were measured."""
    found = []
    large = 128 << 20
    for network, least in (("shm", 20.0), ("cuda_ipc", 150.0)):
        side = _find(result, "all_reduce", large, network)
        if "busbw_GBs" in side:
            reached = side["busbw_GBs"]
            what = f"{network}: all_reduce of 128M, at least {least:g} GB/s bus bandwidth"
            found.append({"what": what, "reached": reached, "met": reached >= least})
    side = _find(result, "all_reduce", 8, "shm")
    if "time_us" in side:
        reached = side["time_us"]
        what = "shm: all_reduce of 8 bytes, at most 18 us"
        found.append({"what": what, "reached": reached, "met": reached <= 18})
    ratios = [
        row["cuda_ipc"]["time_us"] / row["shm"]["time_us"]
        for row in result["rows"]
        if "time_us" in row.get("shm", {}) and "time_us" in row.get("cuda_ipc", {})
    ]
    if ratios:
        # Repetitions of a median differ by some percent.
        what = "cuda_ipc: never slower than shm (largest ratio of times; 1.1 passes)"
        found.append({"what": what, "reached": max(ratios), "met": max(ratios) <= 1.1})
    return found


def _cells(side: dict[str, Any] | None) -> str:
    if side is None:
        return f"{'-':>11} {'-':>8}"
    if "error" in side:
        return f"{'error':>11} {'':>8}"
    return f"{side['time_us']:>11.2f} {side['busbw_GBs']:>8.2f}"


def text(result: dict[str, Any]) -> str:
    """The table."""
    shown = [name for name in NETWORKS if name in result["networks"]]
    lines = [
        f"# {result['date']}  {result['gpus']} x {result['gpu']}",
        f"# {result['command']}",
        *(
            f"# {name}: NCCL {start['version']}, started in {start['seconds']:.2f} s"
            for name, start in result["starts"].items()
        ),
        "# all data over the network; time in us, busbw in GB/s; medians of the rounds",
    ]
    operation = None
    for row in result["rows"]:
        if row["operation"] != operation:
            operation = row["operation"]
            lines += [
                "",
                operation,
                f"{'':>6} " + "  ".join(f"{TITLES[name]:>20}" for name in shown),
                f"{'bytes':>6} " + "  ".join(f"{'time':>11} {'busbw':>8}" for _ in shown),
            ]
        cells = "  ".join(_cells(row.get(name)) for name in shown)
        lines.append(f"{size_text(row['size']):>6} {cells}")
        lines += [
            f"       {name}: {row[name]['error']}" for name in shown if "error" in row.get(name, {})
        ]
    if result["losses"]:
        lines += ["", "a rank killed: until the other's NCCL reports an error"]
        for name, loss in result["losses"].items():
            told = loss.get("error") or f"{loss['seconds']:.2f} s, result {loss['result']}"
            lines.append(f"  {name}: {told}")
    if result["aims"]:
        lines += ["", "aims"]
        for aim in result["aims"]:
            mark = "met   " if aim["met"] else "MISSED"
            lines.append(f"  {mark} {aim['what']}: {aim['reached']:.2f}")
    return "\n".join(lines) + "\n"


def draw(result: dict[str, Any], target: Path) -> None:
    """For each operation the time of small sizes, and the bus bandwidth. Needs Matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    operations = list(dict.fromkeys(row["operation"] for row in result["rows"]))
    figure, grid = pyplot.subplots(
        2,
        len(operations),
        figsize=(1 + 2.7 * len(operations), 6.4),
        squeeze=False,
        sharey="row",
        layout="constrained",
    )
    for column, operation in enumerate(operations):
        for network, colour in COLOURS.items():
            points = [
                (row["size"], row[network])
                for row in result["rows"]
                if row["operation"] == operation and "time_us" in row.get(network, {})
            ]
            small = [(size, side["time_us"]) for size, side in points if size <= SMALL]
            large = [(size, side["busbw_GBs"]) for size, side in points if size > SMALL]
            for axes, line in ((grid[0][column], small), (grid[1][column], large)):
                if line:
                    axes.plot(*zip(*line), color=colour, label=TITLES[network], marker=".")
        grid[0][column].set_title(operation)
        # From sockets to GPUs' own links it is two orders of magnitude.
        grid[1][column].set_yscale("log")
        for axes in grid[:, column]:
            size_axis(axes)
            axes.set_xticks(sorted({x for line in axes.lines for x in line.get_xdata()}))
    grid[0][0].set_ylim(bottom=0)
    grid[0][0].set_ylabel("time, µs")
    grid[1][0].set_ylabel("bus bandwidth, GB/s")
    for axes in grid[1]:
        axes.set_xlabel("bytes")
    names: dict[str, Any] = {}
    for axes in grid.flat:
        for line, label in zip(*axes.get_legend_handles_labels()):
            names.setdefault(label, line)
    figure.legend(names.values(), names.keys(), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"{result['gpus']} x {result['gpu']}, NCCL over the network", fontsize=10)
    figure.savefig(target)
    pyplot.close(figure)
