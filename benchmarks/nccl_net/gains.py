"""The table and the picture of a sweep: medians, and the gain of each case over the first."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from logs import Line
from table import size_axis, size_text

# All-reduce of 128 MiB, one GPU and one Omni-Path adapter a host: gains over verbs, by hosts. From
# "PSM2 for NCCL", OpenFabrics Alliance Workshop 2021, the two charts of all-reduce.
PUBLISHED = {
    "psm2": {
        "source": "PSM2 for NCCL, OFA 2021, all-reduce of 128 MiB: verbs, PSM2, separate endpoints",
        "gain_percent": {2: (0.0, 22.0, 26.0), 4: (0.0, 38.0, 46.0)},
    }
}

Key = tuple[int, str, str]  # hosts, operation, case
# For each key and size the lines of all rounds.
Measured = dict[Key, dict[int, list[Line]]]


def point(lines: list[Line]) -> dict[str, Any]:
    """Medians over the rounds; `wrong` is the sum."""
    return {
        "time_us": statistics.median(line.time_us for line in lines),
        "algbw_GBs": statistics.median(line.algbw for line in lines),
        "busbw_GBs": statistics.median(line.busbw for line in lines),
        "wrong": sum(line.wrong for line in lines),
        "rounds": len(lines),
    }


def gain(time_us: float, first_us: float) -> float | None:
    """Percent by which the rate is above the first case's; negative below."""
    return (first_us / time_us - 1) * 100 if time_us > 0 and first_us > 0 else None


def rows_of(measured: Measured, names: list[str]) -> list[dict[str, Any]]:
    """A row for each number of hosts, operation and size."""
    rows: list[dict[str, Any]] = []
    for hosts, operation in dict.fromkeys((key[0], key[1]) for key in measured):
        sides = {name: measured.get((hosts, operation, name), {}) for name in names}
        for size in sorted({size for lines in sides.values() for size in lines}):
            cases = {name: point(lines[size]) for name, lines in sides.items() if size in lines}
            first = cases.get(names[0])
            for side in cases.values():
                side["gain_percent"] = (
                    None if first is None else gain(side["time_us"], first["time_us"])
                )
            rows.append({"hosts": hosts, "operation": operation, "size": size, "cases": cases})
    return rows


def _cell(side: dict[str, Any] | None, first: bool) -> str:
    if side is None:
        return f"{'-':>10} {'-':>8}" + ("" if first else f" {'':>7}")
    shown = f"{side['time_us']:>10.2f} {side['busbw_GBs']:>8.2f}"
    if first:
        return shown
    percent = side["gain_percent"]
    return f"{shown} {'-' if percent is None else f'{percent:+.0f}%':>7}"


def text(result: dict[str, Any]) -> str:
    """The table: time in us, bus bandwidth in GB/s, gain in percent."""
    names: list[str] = result["cases"]
    lines = [
        f"# {result['date']}  {result['machine']['processor']}, {result['machine']['cpus']} CPUs",
        f"# {result['command']}",
        f"# time in us, busbw in GB/s, medians of {result['rounds']} round(s)",
        f"# gain: by how much the rate is above that of {names[0]!r}",
    ]
    if result["load"] > 0.5:
        lines.append(f"# {result['load']:.1f} other processes were ready at the start")
    for name in names:
        facts = result["facts"].get(name, {})
        if facts:
            told = ", ".join(f"{what} {value}" for what, value in sorted(facts.items()))
            lines.append(f"# {name}: {told}")
    shown = None
    for row in result["rows"]:
        if (row["hosts"], row["operation"]) != shown:
            shown = (row["hosts"], row["operation"])
            heads = [
                f"{name[:19]:>19}" if i == 0 else f"{name[:27]:>27}" for i, name in enumerate(names)
            ]
            units = [
                f"{'time':>10} {'busbw':>8}" + ("" if i == 0 else f" {'gain':>7}")
                for i in range(len(names))
            ]
            lines += [
                "",
                f"{row['operation']}, {row['hosts']} hosts",
                f"{'':>6} " + "  ".join(heads),
            ]
            lines.append(f"{'bytes':>6} " + "  ".join(units))
        cells = [_cell(row["cases"].get(name), i == 0) for i, name in enumerate(names)]
        lines.append(f"{size_text(row['size']):>6} " + "  ".join(cells))
    wrong = [
        f"{row['operation']} of {row['size']} bytes, {row['hosts']} hosts, {name}: "
        f"{side['wrong']} wrong"
        for row in result["rows"]
        for name, side in row["cases"].items()
        if side["wrong"]
    ]
    lines += ["", *wrong] if wrong else []
    if result["errors"]:
        lines += ["", *(f"failed: {told}" for told in result["errors"])]
    published = PUBLISHED.get(result.get("beside") or "")
    if published:
        lines += ["", f"published: {published['source']}"]
        gains: dict[int, tuple[float, ...]] = published["gain_percent"]  # type: ignore[assignment]
        lines += [
            f"  {hosts} hosts: " + ", ".join(f"{percent:+.0f}%" for percent in percents[1:])
            for hosts, percents in gains.items()
        ]
    return "\n".join(lines) + "\n"


def write_gains(gains: list[tuple[Any, tuple[float, float], str, str]]) -> None:
    """Writes each text beside its point, above the one below it: axes, point, text, colour."""
    step = 9.0  # points, 72 of an inch
    above: dict[Any, float] = {}
    for axes, end, words, colour in sorted(gains, key=lambda gain: gain[1][1]):
        height = axes.get_position().height * axes.figure.get_figheight() * 72
        bottom, top = axes.get_ylim()
        at = (end[1] - bottom) / (top - bottom) * height
        place = max(at - 3, above.get(axes, -step) + step)
        above[axes] = place
        axes.annotate(
            words, end, textcoords="offset points", xytext=(4, place - at),
            fontsize=8, color=colour,
        )  # fmt: skip


def draw(result: dict[str, Any], target: Path) -> None:
    """Bus bandwidth over size, a panel for each number of hosts and operation. Needs Matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names: list[str] = result["cases"]
    panels = list(dict.fromkeys((row["hosts"], row["operation"]) for row in result["rows"]))
    figure, grid = pyplot.subplots(
        1, len(panels), figsize=(1 + 4.2 * len(panels), 4), squeeze=False, sharey=True,
        layout="constrained",
    )  # fmt: skip
    gains = []
    for axes, (hosts, operation) in zip(grid[0], panels):
        rows = [r for r in result["rows"] if (r["hosts"], r["operation"]) == (hosts, operation)]
        for name in names:
            points = [(r["size"], r["cases"][name]) for r in rows if name in r["cases"]]
            if not points:
                continue
            sizes = [size for size, _ in points]
            (line,) = axes.plot(
                sizes, [side["busbw_GBs"] for _, side in points], marker=".", label=name
            )
            percent = points[-1][1]["gain_percent"]
            if name != names[0] and percent is not None:
                end = (sizes[-1], points[-1][1]["busbw_GBs"])
                gains.append((axes, end, f"{percent:+.0f}%", line.get_color()))
        axes.set_title(f"{operation.replace('_', '-')}, {hosts} hosts", fontsize=10)
        size_axis(axes)
        ticks = sorted({row["size"] for row in rows})
        axes.set_xticks(ticks[:: max(1, len(ticks) // 8)])
        axes.set_xlabel("bytes")
        axes.margins(x=0.12)
    grid[0][0].set_ylim(bottom=0)
    grid[0][0].set_ylabel("bus bandwidth, GB/s")
    write_gains(gains)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    figure.savefig(target)
    pyplot.close(figure)
