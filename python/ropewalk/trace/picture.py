"""The picture of `ropewalk trace --plot`: the load of each host over time, collectives above."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("agg")

import numpy as np
from matplotlib.figure import Figure

from ropewalk.trace.collectives import Span
from ropewalk.trace.recording import Quantity, Recording
from ropewalk.trace.series import Series

_BINS: Final = 800
_MOST_LINES: Final = 8  # of a panel; the busiest
_COLOURS: Final = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#444444",
    "#999999",
)


def shares(spans: list[Span], end: float, bins: int = _BINS) -> Any:
    """What part of each of `bins` equal times from 0 to `end` lies within a span."""
    if end <= 0 or not spans:
        return np.zeros(bins)
    # The whole time within spans up to each edge: overlapping spans count once.
    begins, ends, reach = [], [], float("-inf")
    for begin, stop in spans:
        begin = max(begin, reach)
        if stop > begin:
            begins.append(begin)
            ends.append(stop)
            reach = stop
    if not begins:
        return np.zeros(bins)
    edges = np.linspace(0, end, bins + 1)
    points = np.column_stack([begins, ends]).ravel()
    lengths = np.subtract(ends, begins)
    inside = np.column_stack([np.concatenate([[0], np.cumsum(lengths)[:-1]]), np.cumsum(lengths)])
    covered = np.interp(edges, points, inside.ravel())
    return np.diff(covered) * bins / end


def draw(recording: Recording, spans: dict[int, list[Span]], title: str, path: Path) -> None:
    """Writes it; the ending of `path` says in which format. Raises OSError."""
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    panels = [
        (host, *panel)
        for host, series in recording.series.items()
        for panel in _panels(recording, host, series)
    ]
    ranks = len(spans)
    heights = ([0.35 + 0.16 * min(ranks, 24)] if ranks else []) + [1.2] * len(panels)
    figure = Figure(figsize=(11, 1.0 + 1.25 * sum(heights)), layout="constrained")
    rows = figure.subplots(
        max(1, len(heights)), 1, sharex=True, squeeze=False, height_ratios=heights or [1]
    )[:, 0]
    end = max(
        (s.seconds[-1] for of in recording.series.values() for s in of.values() if s.seconds),
        default=1.0,
    )
    if ranks:
        _collectives(rows[0], spans, end)
    for axes, (host, name, unit, lines) in zip(rows[1 if ranks else 0 :], panels):
        for index, (label, series) in enumerate(lines):
            axes.plot(
                series.seconds, series.values, label=label, color=_COLOURS[index % 8], linewidth=1.2
            )
        axes.set_title(f"{host}: {name}", loc="left", fontsize=10)
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0, top=1.02 if unit == "fraction" else None)
        axes.grid(True, color="#e3e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if len(lines) > 1:
            axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    rows[-1].set_xlabel("seconds")
    rows[-1].set_xlim(0, end)
    figure.suptitle(title, fontsize=12)
    figure.savefig(path, dpi=144)


def _collectives(axes: Any, spans: dict[int, list[Span]], end: float) -> None:
    image = np.array([shares(each, end) for each in spans.values()])
    axes.imshow(
        image, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest",
        extent=(0, end, len(spans) - 0.5, -0.5),
    )  # fmt: skip
    axes.set_yticks(range(len(spans)), list(spans), fontsize=8)
    axes.set_ylabel("rank")
    axes.set_title(
        "share of the time in collectives: white none, dark all", loc="left", fontsize=10
    )


def _panels(
    recording: Recording, host: str, series: dict[Quantity, Series]
) -> list[tuple[str, str, list[tuple[str, Series]]]]:
    """Name, unit and lines of each."""
    memory = float(recording.descriptions[host]["memory"] or 1)
    load, rates, gpus = [], [], []
    for (device, what, unit), each in series.items():
        if what == "cpu":
            load.append(("processors", each))
        elif what == "memory":
            load.append(("memory", _scaled(each, 1 / memory)))
        elif what == "gpu":
            gpus.append((device, each))
        elif unit == "B/s" and max(each.values, default=0) > 0:
            kind, _, direction = what.rpartition("_")
            shown = {"nvlink": " NVLink", "pcie": " PCIe"}.get(kind, "")
            rates.append((f"{device}{shown} {direction}", _scaled(each, 1e-9)))
    panels = [("load", "fraction", load)]
    if gpus:
        panels.append(("GPUs busy", "fraction", gpus[:_MOST_LINES]))
    if rates:
        rates.sort(key=lambda line: -sum(line[1].values))
        panels.append(("links", "GB/s", rates[:_MOST_LINES]))
    return [panel for panel in panels if panel[2]]


def _scaled(series: Series, factor: float) -> Series:
    made = Series()
    made.seconds = series.seconds
    made.values = [factor * value for value in series.values]
    return made
