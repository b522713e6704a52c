"""Plans as SVG: the machine as in `machine`, its trees in colours along the links."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from typing import Any, Final

from ropewalk.drawing import machine
from ropewalk.drawing.layout import Layout, arrange
from ropewalk.drawing.shapes import INK, PALETTE, SOFT, Canvas
from ropewalk.planning import Plan

_MOST_LINES: Final = 6
"""trees drawn beside each other on one link; more are drawn as one grey line"""
_ROW: Final = 18.0
_MOST_ROWS: Final = 12


def svg(plan: Plan) -> str:
    """The picture: colours are trees (or roots, when there are many trees), widths are load."""
    topology = plan.topology
    layout = arrange(topology)
    groups = _groups(plan)
    shared = any(len(_users(groups, index)) > _MOST_LINES for index in range(len(plan.links)))
    rows = min(len(groups), _MOST_ROWS) + (len(groups) > _MOST_ROWS) + shared
    rows += len(_reason(plan, layout)) - 1
    canvas = Canvas(
        layout.width, layout.height + 24 + (rows + 2.2) * _ROW, f"{plan.collective} plan"
    )
    title = f"{plan.collective} on {topology.name}, by {plan.algorithm}"
    machine.draw(canvas, topology, layout, faint=True, title=title)
    for index, group in enumerate(groups):
        canvas.raw(
            f"<marker id='tip{index}' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='4.5' "
            f"markerHeight='4.5' orient='auto'><path d='M0 0L8 4L0 8z' fill='{group['colour']}'/>"
            "</marker>"
        )
    _draw_links(canvas, layout, plan, groups)
    machine.draw_nodes(canvas, topology, layout)
    _draw_legend(canvas, layout, plan, groups, shared=shared)
    return canvas.svg()


def _groups(plan: Plan) -> list[dict[str, Any]]:
    """Trees that share a colour: each its own when they are few, else those of one root."""
    trees = plan.trees
    single = len(trees) <= len(PALETTE)
    found: dict[int, dict[str, Any]] = {}
    for index, tree in enumerate(trees):
        key = index if single else tree["root"]
        if key not in found:
            words = f"tree {index}, root rank {tree['root']}" if single else f"root rank {key}"
            found[key] = {"words": words, "weight": 0.0, "trees": 0, "loads": defaultdict(float)}
        group = found[key]
        group["weight"] += tree["weight_gbps"]
        group["trees"] += 1
        for edge in tree["edges"]:
            for link in edge["links"]:
                group["loads"][link] += tree["weight_gbps"]
    out = list(found.values())
    for index, group in enumerate(out):
        group["colour"] = PALETTE[index % len(PALETTE)]
    return out


def _users(groups: list[dict[str, Any]], link: int) -> list[tuple[int, dict[str, Any], float]]:
    """Which colours are on a link: number, group, load."""
    return [
        (index, group, group["loads"][link])
        for index, group in enumerate(groups)
        if group["loads"].get(link, 0) > 0
    ]


def _draw_links(canvas: Canvas, layout: Layout, plan: Plan, groups: list[dict[str, Any]]) -> None:
    heaviest = max((max(group["loads"].values(), default=0) for group in groups), default=1)
    for index, link in enumerate(plan.links):
        using = _users(groups, index)
        # Both directions share a line: each keeps to its own side of it.
        side = 1 if link["source"] < link["destination"] else -1
        if len(using) > _MOST_LINES:
            total = sum(load for _, _, load in using)
            path = layout.path(link["source"], link["destination"], side * 3.4)
            if path is not None:
                canvas.curve(
                    path, stroke=SOFT, stroke_width=_shared_width(total / link["capacity"])
                )
            continue
        for position, (index, group, load) in enumerate(using):
            path = layout.path(link["source"], link["destination"], side * (2.5 + 3.6 * position))
            if path is not None:
                canvas.curve(
                    path,
                    stroke=group["colour"],
                    stroke_width=1.2 + 2.2 * load / heaviest,
                    opacity=0.9,
                    marker=f"url(#tip{index})",
                )


def _reason(plan: Plan, layout: Layout) -> list[str]:
    """What limits the plan, in lines."""
    return textwrap.wrap(plan.bottleneck["words"], max(int((layout.width - 56) / 6.2), 30))


def _shared_width(share: float) -> float:
    return 1.6 + 4 * share


def _draw_legend(
    canvas: Canvas, layout: Layout, plan: Plan, groups: list[dict[str, Any]], *, shared: bool
) -> None:
    y = layout.height + 12
    verdict = "no schedule can exceed this" if plan.optimal else f"{plan.ratio:.1%} of the bound"
    line = f"{plan.rate_gbps:.4g} GB/s of {plan.bound_gbps:.4g}: {verdict}"
    canvas.text(28, y, line, size=14, fill=INK, weight="bold", anchor="start")
    for words in _reason(plan, layout):
        y += _ROW
        canvas.text(28, y, words, size=11.5, fill=SOFT, anchor="start")
    y -= _ROW
    for row, group in enumerate(groups[:_MOST_ROWS]):
        line_y = y + (row + 2.2) * _ROW
        canvas.curve(
            f"M28 {line_y - 4:.1f}L70 {line_y - 4:.1f}", stroke=group["colour"], stroke_width=3.2
        )
        many = f", {group['trees']} trees" if group["trees"] > 1 else ""
        canvas.text(
            82, line_y, f"{group['words']}: {group['weight']:.4g} GB/s{many}", anchor="start"
        )
    row = min(len(groups), _MOST_ROWS)
    if len(groups) > _MOST_ROWS:
        words = f"and {len(groups) - _MOST_ROWS} more in the same colours"
        canvas.text(28, y + (row + 2.2) * _ROW, words, fill=SOFT, anchor="start")
        row += 1
    if shared:
        line_y = y + (row + 2.2) * _ROW
        canvas.curve(
            f"M28 {line_y - 4:.1f}L70 {line_y - 4:.1f}", stroke=SOFT, stroke_width=_shared_width(1)
        )
        words = f"more than {_MOST_LINES} of these on one link; this wide where they fill it"
        canvas.text(82, line_y, words, anchor="start")
