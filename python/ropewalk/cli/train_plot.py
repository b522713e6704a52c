"""The chart of `ropewalk train --plot`: networks side by side, for each model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("agg")

from matplotlib.figure import Figure

from ropewalk.training.figures import Baseline, Figures

# Okabe and Ito's colours, which people with any colour vision tell apart.
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_GREY: Final = "#8a9299"


def draw(
    results: dict[str, dict[str, Figures]], baselines: dict[str, Baseline], title: str, path: Path
) -> None:
    """Writes the picture; the ending of `path` says in which format.

    Args:
        results: of each model, of each network.
        baselines: of each model, without communication.
        title: above all.
        path: where to.
    """
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    batch, communication = figure.subplots(1, 2)
    models = list(results)
    labels = list(next(iter(results.values())))
    width = 0.8 / len(labels)
    for place, label in enumerate(labels):
        at = [i + (place - (len(labels) - 1) / 2) * width for i in range(len(models))]
        of = [results[model][label] for model in models]
        colour = _COLOURS[place % len(_COLOURS)]
        middle = [1e3 * each.batch_median for each in of]
        spread = [1e3 * max(0.0, each.batch_p95 - each.batch_median) for each in of]
        batch.bar(
            at,
            middle,
            0.92 * width,
            color=colour,
            label=label,
            yerr=[[0.0] * len(of), spread],
            error_kw={"elinewidth": 1, "capsize": 2, "alpha": 0.6},
        )
        for x, value in zip(at, middle):
            batch.annotate(
                f"{value:.3g}",
                (x, 0),
                (0, 4),
                textcoords="offset points",
                ha="center",
                color="white",
                fontsize=8,
            )
        whole = [1e3 * each.collectives for each in of]
        bare = [1e3 * each.exposed for each in of]
        communication.bar(at, whole, 0.92 * width, color=colour, alpha=0.35)
        communication.bar(at, bare, 0.92 * width, color=colour)
        for x, high, low in zip(at, whole, bare):
            communication.annotate(
                f"{high:.3g}\n({low:.3g})",
                (x, max(high, low)),
                (0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
    for i, model in enumerate(models):
        if model not in baselines:
            continue
        for seconds, style, label in (
            (baselines[model].at_once, "--", "without communication"),
            (baselines[model].one_rank, ":", "one rank alone"),
        ):
            batch.hlines(
                1e3 * seconds,
                i - 0.42,
                i + 0.42,
                color=_GREY,
                linewidth=2,
                linestyle=style,
                label=label if i == 0 else None,
            )
    for axes in (batch, communication):
        _finish(axes, models)
    batch.set_ylabel("batch time, median (ms); line to p95")
    batch.set_title("Batch time", loc="left", fontsize=11)
    batch.set_ylim(top=1.25 * batch.get_ylim()[1])
    batch.legend(frameon=False, loc="upper right", fontsize=9, ncols=2)
    communication.set_ylabel("time in collectives of a batch (ms)")
    communication.set_title(
        "Time in collectives: pale all, full (in brackets) exposed", loc="left", fontsize=11
    )
    communication.set_ylim(top=1.12 * communication.get_ylim()[1])
    figure.suptitle(title, fontsize=13)
    figure.savefig(path, dpi=144)


def _finish(axes: Any, models: list[str]) -> None:
    axes.set_xticks(range(len(models)), models)
    axes.set_xlim(-0.6, len(models) - 0.4)
    axes.set_ylim(bottom=0)
    axes.grid(True, axis="y", color="#e3e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
