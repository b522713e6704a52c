"""The picture: for each operation the time of small sizes, and the bus bandwidth of large ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from table import size_axis

COLOURS = {"nccl": "#009E73", "ropewalk": "#D55E00"}
TITLES = {"nccl": "NCCL", "ropewalk": "Ropewalk"}
STYLES = {"stream": "--", "graph": "-"}
SMALL = 1 << 18


def draw(result: dict[str, Any], target: Path) -> None:
    """One column per operation, two rows. Needs Matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    mode = "process" if any(row["mode"] == "process" for row in result["rows"]) else "thread"
    rows = [row for row in result["rows"] if row["mode"] == mode]
    operations = list(dict.fromkeys(row["operation"] for row in rows))
    figure, grid = pyplot.subplots(
        2,
        len(operations),
        figsize=(1 + 2.7 * len(operations), 6.4),
        squeeze=False,
        sharey="row",
        layout="constrained",
    )
    for column, operation in enumerate(operations):
        for library, colour in COLOURS.items():
            for launch, style in STYLES.items():
                points = [
                    (row["size"], row[library])
                    for row in rows
                    if row["operation"] == operation
                    and row["launch"] == launch
                    and "time_us" in row.get(library, {})
                ]
                name = f"{TITLES[library]}, {'CUDA graph' if launch == 'graph' else launch}"
                small = [(size, side["time_us"]) for size, side in points if size <= SMALL]
                large = [(size, side["busbw_GBs"]) for size, side in points if size > SMALL]
                for axes, line in ((grid[0][column], small), (grid[1][column], large)):
                    if line:
                        axes.plot(
                            *zip(*line), style, color=colour, label=name, marker=".", linewidth=1.4
                        )
        grid[0][column].set_title(operation)
        for axes in grid[:, column]:
            size_axis(axes)
    # Once all is drawn: a row shares its axis, which then takes no further lines into account.
    for axes in grid[:, 0]:
        axes.set_ylim(bottom=0)
    grid[0][0].set_ylabel("time, µs")
    grid[1][0].set_ylabel("bus bandwidth, GB/s")
    for axes in grid[1]:
        axes.set_xlabel("bytes")
    names: dict[str, Any] = {}
    for axes in grid.flat:
        for line, label in zip(*axes.get_legend_handles_labels()):
            names.setdefault(label, line)
    # Below: above, it would lie over the title.
    figure.legend(names.values(), names.keys(), loc="outside lower center", ncols=4, frameon=False)
    how = "one process per GPU" if mode == "process" else "one thread, all GPUs"
    figure.suptitle(f"{result['gpus']} x {result['gpu']}, {how}", fontsize=10)
    figure.savefig(target)
    pyplot.close(figure)
