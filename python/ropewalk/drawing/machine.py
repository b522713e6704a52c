"""A machine as SVG: boxes for devices, lines for links, widths by capacity."""

from __future__ import annotations

import math
import textwrap
from typing import Final, Optional

from ropewalk.drawing.layout import Layout, arrange
from ropewalk.drawing.shapes import INK, SOFT, Canvas
from ropewalk.topology import Link, Node, Topology

COLOURS: Final = {
    "nvlink": "#5a8f00",
    "xgmi": "#c0392b",
    "c2c": "#008b8b",
    "pcie": "#2f6fb0",
    "smp": "#7a8793",
    "net": "#d08700",
    "ntb": "#7d4fb3",
    "ethernet": "#8a5a2b",
}
_NAMES: Final = {
    "nvlink": "NVLink",
    "xgmi": "xGMI",
    "c2c": "C2C",
    "pcie": "PCIe",
    "smp": "between NUMA nodes",
    "net": "network",
    "ntb": "PCIe bridge (NTB)",
    "ethernet": "Ethernet",
}
_FILLS: Final = {
    "gpu": "#eaf3da",
    "nic": "#fdf1d8",
    "cpu": "#e9edf2",
    "pcie_switch": "#e3edf7",
    "nvswitch": "#d5e7b5",
    "network": "#fbe6bd",
}
_STROKES: Final = {
    "gpu": "#5a8f00",
    "nic": "#b87700",
    "cpu": "#52606d",
    "pcie_switch": "#2f6fb0",
    "nvswitch": "#5a8f00",
    "network": "#b87700",
}
_WIDEST: Final = 9.0
_LEGEND_ROW: Final = 24.0
_LETTER: Final = 0.66
"""width of a bold letter by its size, on the whole"""


def stroke_width(capacity: float, largest: float) -> float:
    """Width of a link's line: the square root of its share of the largest capacity."""
    return max(1.0, _WIDEST * math.sqrt(capacity / largest))


def svg(topology: Topology) -> str:
    """The picture, with a legend of what widths and colours say."""
    layout = arrange(topology)
    legend = _legend_lines(topology)
    canvas = Canvas(layout.width, layout.height + legend_height(legend), topology.title)
    draw(canvas, topology, layout)
    _draw_legend(canvas, legend, layout, topology)
    return canvas.svg()


def draw(
    canvas: Canvas, topology: Topology, layout: Layout, *, faint: bool = False, title: str = ""
) -> None:
    """The machine alone. `faint`: links as a background for what is drawn over them."""
    draw_title(canvas, title or topology.title or topology.name, summary(topology))
    for frame in layout.frames:
        canvas.box(
            frame.x,
            frame.y,
            frame.width,
            frame.height,
            fill="#fbfcfd",
            stroke="#c8d0d8",
            radius=10,
        )
        if topology.hosts > 1:
            canvas.text(
                frame.x + 12,
                frame.y + frame.height - 12,
                f"host {frame.host}",
                size=13,
                fill=SOFT,
                anchor="start",
            )
    largest = max((link.capacity for link in topology.links), default=1)
    for link in _one_way(topology):
        path = layout.path(link.src, link.dst)
        if path is None:
            continue
        canvas.curve(
            path,
            stroke="#d5dbe1" if faint else COLOURS[link.type],
            stroke_width=stroke_width(link.capacity, largest),
            opacity=1 if faint else 0.8,
            dashes="9 5" if link.assumed and not faint else "",
        )
    draw_nodes(canvas, topology, layout)


def draw_nodes(canvas: Canvas, topology: Topology, layout: Layout) -> None:
    """The boxes. After what runs along links, so that lines end at them."""
    nics = [node.id for node in topology.nodes if node.kind == "nic"]
    for node in topology.nodes:
        box = layout.boxes.get(node.id)
        if box is None:
            continue
        canvas.box(
            box.left,
            box.top,
            box.width,
            box.height,
            fill=_FILLS[node.kind],
            stroke=_STROKES[node.kind],
        )
        first, second = _labels(node, nics)
        if second:
            canvas.text(box.x, box.y - 2, first, size=13, weight="bold")
            canvas.text(box.x, box.y + 13, _fitted(second, box.width), size=10, fill=SOFT)
        else:
            canvas.text(box.x, box.y + 4.5, first, size=12)


def draw_title(canvas: Canvas, title: str, below: str) -> None:
    """At the upper left: the title in one line, or in two smaller ones, and what is below it."""
    room = canvas.width - 48
    lines, size, y = [title], 18.0, 34.0
    if len(title) * size * _LETTER > room:
        size, y = 15.0, 28.0
        lines = textwrap.wrap(title, int(room / (size * _LETTER)), max_lines=2, placeholder="…")
    for line in lines:
        canvas.text(24, y, line, size=size, weight="bold", anchor="start")
        y += size + 4
    canvas.text(24, y, below, size=12.5, fill=SOFT, anchor="start")


def summary(topology: Topology) -> str:
    """How much there is of what: "2 hosts, 16 GPUs (A100), 16 NICs"."""
    words = []
    if topology.hosts > 1:
        words.append(f"{topology.hosts} hosts")
    for kind, word in (
        ("gpu", "GPU"),
        ("nvswitch", "NVSwitch"),
        ("pcie_switch", "PCIe switch"),
        ("cpu", "NUMA node"),
        ("nic", "NIC"),
        ("network", "network"),
    ):
        found = [node for node in topology.nodes if node.kind == kind]
        if not found:
            continue
        plural = "" if len(found) == 1 else "es" if word.endswith("ch") else "s"
        models = sorted({node.model for node in found if node.model})
        extra = f" ({models[0]})" if len(models) == 1 and kind == "gpu" else ""
        words.append(f"{len(found)} {word}{plural}{extra}")
    return ", ".join(words)


def _one_way(topology: Topology) -> list[Link]:
    """Of two directions of the same capacity one, thin ones last so that they stay in sight."""
    seen: dict[tuple[str, str, str], Link] = {}
    for link in topology.links:
        twin = seen.get((link.dst, link.src, link.type))
        if twin is None or twin.capacity < link.capacity:
            if twin is not None:
                del seen[(link.dst, link.src, link.type)]
            seen[(link.src, link.dst, link.type)] = link
    return sorted(seen.values(), key=lambda link: -link.capacity)


def _labels(node: Node, nics: list[str]) -> tuple[str, str]:
    if node.kind == "gpu":
        return f"GPU {node.rank}", short_model(node.model) or node.bus_id
    if node.kind == "nic":
        return f"NIC {nics.index(node.id)}", node.device or (
            f"{node.net_gbps:g} GB/s" if node.net_gbps else ""
        )
    if node.kind == "cpu":
        name = "CPU" if node.numa is None else f"NUMA {node.numa}"
        return name, f"CPUs {node.cpus}" if node.cpus else ""
    if node.kind == "nvswitch":
        return "NVSwitch", ""
    return node.id.split(".")[-1] if node.kind == "pcie_switch" else node.id, ""


def short_model(model: str) -> str:
    """Without what every name has: "NVIDIA H200" -> "H200", "Tesla V100-SXM2-16GB" -> "V100"."""
    word = (
        model.replace("NVIDIA ", "")
        .replace("Tesla ", "")
        .replace("AMD ", "")
        .replace("Quadro ", "")
    )
    return word.split("-")[0].strip()


def _fitted(text: str, width: float) -> str:
    most = max(int(width / 6.4), 4)
    return text if len(text) <= most else text[: most - 1] + "…"


def _legend_lines(topology: Topology) -> list[tuple[Link, int, str]]:
    """A line per type and capacity: a link of it, how many cables there are, words."""
    found: dict[tuple[str, float, Optional[int], Optional[int]], tuple[Link, int]] = {}
    for link in _one_way(topology):
        key = (link.type, link.capacity, link.lanes, link.gen)
        before = found.get(key)
        found[key] = (link, 1 if before is None else before[1] + 1)
    order = list(COLOURS)
    lines = []
    for link, count in found.values():
        words = f"{_NAMES[link.type]} {link.capacity:g} GB/s each way"
        if link.lanes:
            words += f", {link.lanes} lane" + ("s" if link.lanes > 1 else "")
        elif link.gen:
            words += f", gen {link.gen} x{link.width or 16}"
        lines.append((link, count, words))
    lines.sort(key=lambda line: (order.index(line[0].type), -line[0].capacity))
    return lines[:12]


def legend_height(lines: list[tuple[Link, int, str]]) -> float:
    """What a legend of so many lines adds to the picture."""
    return 34 + _LEGEND_ROW * math.ceil(len(lines) / 2) + 22


def _draw_legend(
    canvas: Canvas, lines: list[tuple[Link, int, str]], layout: Layout, topology: Topology
) -> None:
    largest = max((link.capacity for link in topology.links), default=1)
    columns = 2 if layout.width >= 760 else 1
    if columns == 1:
        canvas.height += _LEGEND_ROW * (len(lines) - math.ceil(len(lines) / 2))
    rows = math.ceil(len(lines) / columns)
    for i, (link, count, words) in enumerate(lines):
        x = 28 + (i // rows) * max(380, (layout.width - 56) / 2)
        y = layout.height + 14 + (i % rows) * _LEGEND_ROW
        canvas.curve(
            f"M{x} {y}L{x + 52} {y}",
            stroke=COLOURS[link.type],
            stroke_width=stroke_width(link.capacity, largest),
            opacity=0.8,
            dashes="9 5" if link.assumed else "",
        )
        more = f" (\u00d7 {count}{', assumed' if link.assumed else ''})"
        canvas.text(x + 66, y + 4.5, words + more, size=12, fill=INK, anchor="start")
    note = "Widths: square root of capacity."
    if layout.hidden_hosts:
        note += f" {layout.hidden_hosts} more identical hosts are not drawn."
    y = layout.height + 14 + rows * _LEGEND_ROW + 10
    canvas.text(28, y, note, size=11, fill=SOFT, anchor="start")
