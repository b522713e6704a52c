"""The picture of `ropewalk bench --plot`: bandwidth and latency over size."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import matplotlib as mpl

mpl.use("agg")

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from ropewalk.cli.bench_plan import Operation
from ropewalk.cli.bench_table import Line, Timing

_OUT_OF_PLACE = "#0072b2"
_IN_PLACE = "#d55e00"


def size_label(size: float) -> str:
    """65536 to "64 KiB"."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size:.4g} B"


def _time_label(time_us: float) -> str:
    if time_us >= 1e6:
        return f"{time_us / 1e6:.4g} s"
    if time_us >= 1e3:
        return f"{time_us / 1e3:.4g} ms"
    return f"{time_us:.4g} us"


def draw(operation: Operation, lines: list[Line], ranks: int, path: Path) -> None:
    """Writes the picture; the ending of `path` says in which format."""
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    bandwidth, latency = figure.subplots(1, 2)
    kinds = sorted({(line.type_name, line.op_name, line.root) for line in lines})
    for index, kind in enumerate(kinds):
        chosen = [line for line in lines if (line.type_name, line.op_name, line.root) == kind]
        chosen = [line for line in chosen if line.size > 0]
        suffix = f", {' '.join(_kind_words(kind))}" if len(kinds) > 1 else ""
        shade = 1.0 - 0.7 * index / max(1, len(kinds) - 1)
        _curve(bandwidth, latency, chosen, True, f"in place{suffix}", shade)
        _curve(bandwidth, latency, chosen, False, f"out of place{suffix}", shade)

    sizes = sorted({line.size for line in lines if line.size > 0})
    for axes in (bandwidth, latency):
        _size_axis(axes, sizes)
        axes.grid(True, which="major", color="#e3e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    bandwidth.set_ylabel("bus bandwidth (GB/s)")
    bandwidth.set_ylim(bottom=0)
    bandwidth.set_title("Bandwidth", loc="left", fontsize=11)
    latency.set_ylabel("time of one operation")
    latency.set_yscale("log", base=10)
    latency.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=12))
    latency.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _time_label(value)))
    latency.yaxis.set_minor_locator(NullLocator())
    latency.set_title("Latency", loc="left", fontsize=11)
    handles, labels = bandwidth.get_legend_handles_labels()
    if len(labels) <= 8:
        bandwidth.legend(handles[::-1], labels[::-1], frameon=False, loc="upper left", fontsize=9)
    words = f", {' '.join(_kind_words(kinds[0]))}" if len(kinds) == 1 else ""
    figure.suptitle(f"{operation.name} over {ranks} ranks{words}", fontsize=13)
    figure.savefig(path, dpi=144)


def _kind_words(kind: tuple[str, str, int]) -> list[str]:
    type_name, op_name, root = kind
    words = [type_name]
    if op_name != "none":
        words.append(op_name)
    if root >= 0:
        words.append(f"root {root}")
    return words


def _curve(
    bandwidth: Any, latency: Any, lines: list[Line], in_place: bool, label: str, shade: float
) -> None:
    points: list[tuple[int, Timing]] = []
    for line in lines:
        timing: Optional[Timing] = line.in_place if in_place else line.out_of_place
        if timing is not None:
            points.append((line.size, timing))
    if not points:
        return
    style = {
        "color": _IN_PLACE if in_place else _OUT_OF_PLACE,
        "linestyle": "--" if in_place else "-",
        "marker": "s" if in_place else "o",
        "markersize": 4,
        "linewidth": 1.6,
        "alpha": shade,
        "label": label,
    }
    sizes = [size for size, _ in points]
    bandwidth.plot(sizes, [timing.busbw for _, timing in points], **style)
    latency.plot(sizes, [timing.time_us for _, timing in points], **style)


def _size_axis(axes: Any, sizes: list[int]) -> None:
    axes.set_xlabel("size")
    if not sizes:
        return
    axes.set_xscale("log", base=2)
    low, high = sizes[0], sizes[-1]
    powers = [1 << bit for bit in range(63) if low <= 1 << bit <= high] or [low]
    stride = -(-len(powers) // 9)  # at most nine labels stand side by side
    axes.xaxis.set_major_locator(FixedLocator(powers[::-stride][::-1]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_label(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="x", labelsize=9)
    for label in axes.get_xticklabels():
        label.set(rotation=30, ha="right", rotation_mode="anchor")
    axes.set_xlim(low / 1.4, high * 1.4)
