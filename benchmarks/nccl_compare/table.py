"""Medians, bandwidths and the text table."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

LIBRARIES = ("nccl", "ropewalk")


@dataclass(frozen=True)
class Key:
    mode: str
    launch: str
    operation: str
    size: int


def bus_factor(operation: str, ranks: int) -> float:
    """busbw over algbw, as nccl-tests defines them."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


def summary(times_us: list[float], size: int, operation: str, ranks: int) -> dict[str, float]:
    middle = statistics.median(times_us)
    algbw = size / middle / 1e3
    return {
        "time_us": middle,
        "min_us": min(times_us),
        "max_us": max(times_us),
        "algbw_GBs": algbw,
        "busbw_GBs": algbw * bus_factor(operation, ranks),
    }


def size_text(size: int) -> str:
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def size_axis(axes: Any) -> None:
    """Of a picture: sizes in bytes on the x axis, by powers of two. Needs Matplotlib."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: size_text(int(size))))
    axes.tick_params(axis="x", labelrotation=45, labelsize=8)
    axes.grid(alpha=0.3, linewidth=0.6)


def rows_of(
    times: dict[tuple[Key, str], list[float]], errors: dict[tuple[Key, str], str], ranks: int
) -> list[dict[str, Any]]:
    """One row for each key, in the order of measuring: both libraries, and the ratio of times."""
    rows: list[dict[str, Any]] = []
    for key in dict.fromkeys([*(key for key, _ in times), *(key for key, _ in errors)]):
        row: dict[str, Any] = {
            "mode": key.mode,
            "launch": key.launch,
            "operation": key.operation,
            "size": key.size,
        }
        for library in LIBRARIES:
            measured = times.get((key, library))
            if (key, library) in errors:
                row[library] = {"error": errors[key, library]}
            elif measured:
                row[library] = summary(measured, key.size, key.operation, ranks)
        pair = [row.get(library, {}).get("time_us") for library in LIBRARIES]
        if all(pair):
            row["speedup"] = pair[0] / pair[1]
        rows.append(row)
    return rows


def _cells(side: dict[str, Any] | None) -> str:
    if side is None:
        return f"{'-':>10} {'-':>8} {'-':>8}"
    if "error" in side:
        return f"{'error':>10} {'':>8} {'':>8}"
    return f"{side['time_us']:>10.2f} {side['algbw_GBs']:>8.2f} {side['busbw_GBs']:>8.2f}"


def text(result: dict[str, Any]) -> str:
    lines = [
        f"# {result['date']}  {result['gpus']} x {result['gpu']}",
        f"# {result['command']}",
        *(
            f"# {mode}, {name}: version {start['version']}, started in {start['seconds']:.2f} s"
            for mode, starts in result["starts"].items()
            for name, start in starts.items()
        ),
        "# time in us, algbw and busbw in GB/s; medians of the rounds; times: NCCL's time over",
        "# Ropewalk's",
    ]
    if result.get("limits"):
        lines.append("# limits of the machine, GPU 0 and 1:")
        lines += [f"#   {name:<28} {value:g}" for name, value in result["limits"].items()]
    section = None
    for row in result["rows"]:
        place = (row["operation"], row["mode"], row["launch"])
        if place != section:
            section = place
            how = "one thread, all GPUs" if row["mode"] == "thread" else "one process per GPU"
            launch = "CUDA graph" if row["launch"] == "graph" else "stream"
            lines += [
                "",
                f"{row['operation']}: {how}, {launch}",
                f"{'':>6} {'NCCL':>10} {'':>8} {'':>8}   {'Ropewalk':>10}",
                f"{'bytes':>6} {'time':>10} {'algbw':>8} {'busbw':>8}   "
                f"{'time':>10} {'algbw':>8} {'busbw':>8} {'times':>7}",
            ]
        speedup = f"{row['speedup']:>7.2f}" if "speedup" in row else f"{'-':>7}"
        lines.append(
            f"{size_text(row['size']):>6} {_cells(row.get('nccl'))}   "
            f"{_cells(row.get('ropewalk'))} {speedup}"
        )
        for library in LIBRARIES:
            error = row.get(library, {}).get("error")
            if error:
                lines.append(f"       {library}: {error}")
    return "\n".join(lines) + "\n"
