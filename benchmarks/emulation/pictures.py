#!/usr/bin/env python3
"""Pictures of single hops and of several hosts on emulated machines, from what was kept.

Usage: benchmarks/emulation/pictures.py [FOLDER]

Draws emulation-links.svg and emulation-hosts.svg from the JSON files beside them, by default in
benchmarks/results. Needs Matplotlib. `run links` and `run hosts` draw them too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dgx import drawing

RESULTS = Path(__file__).resolve().parents[1] / "results"
Row = dict[str, Any]


def bars(
    axis: Any, places: range, rows: list[Row], columns: tuple[tuple[str, str, str], ...]
) -> None:
    """Beside each other, a group for each row: (key, label, colour)."""
    width = 0.8 / len(columns)
    for index, (key, label, colour) in enumerate(columns):
        shift = (index - (len(columns) - 1) / 2) * width
        values = [row[key] for row in rows]
        axis.bar([p + shift for p in places], values, width * 0.95, label=label, color=colour)


def marks(axis: Any, values: list[float], label: str) -> None:
    """A line over each group."""
    left, right = ([place + shift for place in range(len(values))] for shift in (-0.45, 0.45))
    axis.hlines(values, left, right, color="black", linewidth=1.2, label=label)


def draw_links(rows: list[Row], path: Path) -> None:
    """What a hop over each class of links reaches, and its capacity."""
    pyplot = drawing()
    if pyplot is None:
        return
    figure, axis = pyplot.subplots(figsize=(8, 3.8), layout="constrained")
    places = range(len(rows))
    bars(axis, places, rows, (("measured", "measured", "#0072b2"),))
    capacities = [row["capacity"] for row in rows]
    marks(axis, capacities, "capacity")
    for place, row in zip(places, rows):
        highest = max(row["measured"], row["capacity"])
        axis.annotate(
            f"{row['measured'] / row['capacity']:.3f}",
            (place, highest),
            xytext=(0, 5),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    wrapped = [row["link"].replace(" and ", " and\n").replace("flows ", "flows\n") for row in rows]
    names = [f"{row['machine']} {row['gpus']}\n{link}" for row, link in zip(rows, wrapped)]
    axis.set_xticks(list(places), names, fontsize=8)
    axis.set_ylim(top=1.12 * max(capacities))
    axis.set_ylabel("GB/s of each flow")
    axis.set_title("A hop over an emulated link, and two flows over one", fontsize=10)
    axis.legend(loc="upper left", fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def draw_hosts(rows: dict[str, Row], path: Path) -> None:
    """For each machine of several hosts its operations: the tuner's choice, a ring, the bound."""
    pyplot = drawing()
    if pyplot is None:
        return
    machines: dict[str, dict[str, Row]] = {}
    for key, row in rows.items():
        machine, operation = key.split()
        machines.setdefault(machine, {})[operation] = row
    figure, axes = pyplot.subplots(
        1, len(machines), figsize=(1 + 4 * len(machines), 4.4), squeeze=False, layout="constrained"
    )
    columns = (("ring", "ring in the order of ranks", "#8a6d00"), ("own", "chosen", "#0072b2"))
    for axis, (machine, operations) in zip(axes[0], machines.items()):
        there = list(operations.values())
        places = range(len(there))
        bars(axis, places, there, columns)
        bounds = [row["bound"] for row in there]
        marks(axis, bounds, "bound")
        names = [f"{name}\n{row['chosen']}" for name, row in operations.items()]
        axis.set_xticks(list(places), names, rotation=30, ha="right", fontsize=8)
        axis.set_ylim(top=1.08 * max(bounds))
        axis.set_title(machine, fontsize=10)
    axes[0][0].set_ylabel("algbw, GB/s")
    names = axes[0][0].get_legend_handles_labels()
    figure.legend(*names, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.suptitle(
        "Several emulated hosts; under each operation what the tuner chose", fontsize=10
    )
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    for name, draw in (("links", draw_links), ("hosts", draw_hosts)):
        rows = json.loads((folder / f"emulation-{name}.json").read_text())
        draw(rows, folder / f"emulation-{name}.svg")


if __name__ == "__main__":
    main()
