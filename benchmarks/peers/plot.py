"""The picture: time over size, one small plot per operation, one line per library."""

from __future__ import annotations

from pathlib import Path

from libraries import TITLES
from report import bound_of, limits_of
from results import Results

COLOURS = {
    "openmpi": "#0072B2",
    "mpich": "#E69F00",
    "ucc": "#009E73",
    "gloo": "#999999",
    "own_tcp": "#CC79A7",
    "ropewalk": "#D55E00",
}
MOST_COLUMNS = 3


def _size_label(size: float) -> str:
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if size >= unit:
            return f"{size / unit:g}{name}"
    return f"{size:g}"


def _time_label(time_us: float) -> str:
    for unit, name in ((1e6, "s"), (1e3, "ms"), (1.0, "µs")):
        if time_us >= unit:
            return f"{time_us / unit:g} {name}"
    return f"{time_us * 1e3:g} ns"


def draw(results: Results, scenario: str, target: Path) -> None:
    """Writes `scenario` as SVG (or what the suffix says). Needs Matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    operations = results.operations(scenario)
    limits = limits_of(results)
    columns = min(MOST_COLUMNS, len(operations))
    rows = -(-len(operations) // columns)
    figure, grid = pyplot.subplots(
        rows,
        columns,
        figsize=(1.5 + 3.2 * max(2, columns), 1.2 + 2.7 * rows),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axes in grid.flat[len(operations) :]:
        axes.set_visible(False)
    for axes, operation in zip(grid.flat, operations, strict=False):
        places = results.rows(scenario, operation)
        sizes = [place.size for place in places]
        bounds = [bound_of(results, limits, place) for place in places]
        axes.fill_between(sizes, 1e-6, bounds, color="#000000", alpha=0.08, linewidth=0)
        axes.plot(sizes, bounds, color="#555555", linewidth=0.8, linestyle=":", label="limit")
        for library in results.libraries():
            found = [(p.size, best.time_us) for p in places if (best := results.best(p, library))]
            own = library == "ropewalk"
            title = TITLES[library] + (" (TCP)" if library == "gloo" and "shm" in scenario else "")
            axes.plot(
                [size for size, _ in found],
                [time_us for _, time_us in found],
                color=COLOURS[library],
                linewidth=2.2 if own else 1.3,
                marker="o",
                markersize=3.5 if own else 2.5,
                zorder=3 if own else 2,
                label=title,
            )
        axes.set_title(operation.replace("_", " "), fontsize=10, loc="left")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _size_label(size)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda time_us, _: _time_label(time_us)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(True, color="#dddddd", linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    times = [
        best.time_us
        for place in results.places
        if place.scenario == scenario
        for library in results.libraries()
        if (best := results.best(place, library))
    ]
    grid[0][0].set_ylim(min(times) / 3, max(times) * 2)
    for axes in grid[-1]:
        axes.set_xlabel("bytes", fontsize=8)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    scenarios = results.document["scenarios"]
    machine = results.document["machine"]
    assert isinstance(scenarios, dict) and isinstance(machine, dict)
    form = " in place" if results.document.get("in_place") else ""
    figure.suptitle(
        f"Time per operation{form}, lower is better: {scenarios[scenario]['title']}\n"
        f"{machine['processor']}, kernel {machine['kernel']}",
        fontsize=10,
    )
    # No date and fixed ids: the same figures give the same file.
    pyplot.rcParams["svg.hashsalt"] = "ropewalk"
    metadata = {"Date": None} if target.suffix == ".svg" else None
    figure.savefig(target, dpi=110, metadata=metadata)
    pyplot.close(figure)
