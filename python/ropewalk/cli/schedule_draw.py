"""A schedule as SVG: a space-time diagram.

Each rank is a row, time runs to the right in steps, each arrow is a chunk in transit, coloured by
its block. One panel per channel.
"""

from __future__ import annotations

import colorsys
from html import escape
from typing import Final

from ropewalk.cli.schedule_text import Message, Run, Schedule, Step, run
from ropewalk.drawing.shapes import FAINT, FONT, INK, PALETTE

_COLUMN: Final = 76
_WIDEST_COLUMN: Final = 150
_ROW: Final = 64
_LEFT: Final = 92
_RIGHT: Final = 40
_HEAD: Final = 74
_PANEL_HEAD: Final = 46
_RADIUS: Final = 14
_LEGEND_BLOCKS: Final = 24
_FONT: Final = f"font-family='{FONT}'"


def colour(block: int, blocks: int) -> str:
    """A block's colour: from the palette while it lasts, else evenly around the circle."""
    if blocks <= len(PALETTE):
        return PALETTE[block]
    red, green, blue = colorsys.hls_to_rgb(block / blocks, 0.40, 0.70)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


class _Grid:
    """Where times lie. Few steps of many ranks get wide columns, so that long arrows part."""

    def __init__(self, ranks: int, steps: int) -> None:
        wanted = _COLUMN + 6 * max(0, ranks - 4)
        self.column = min(wanted, _WIDEST_COLUMN) if steps <= 12 else _COLUMN
        self.width = max(_LEFT + steps * self.column + _RIGHT, 640)

    def x(self, time: int) -> float:
        """The middle of a time's column."""
        return _LEFT + time * self.column + self.column / 2


def svg(schedule: Schedule) -> str:
    """The picture."""
    channels = range(len(schedule.weights))
    runs = [run(schedule, channel) for channel in channels]
    blocks = sorted({step.block for program in schedule.programs.values() for step in program})
    num_blocks = max(blocks, default=0) + 1
    longest = max((found.length for found in runs), default=0)
    grid = _Grid(schedule.ranks, longest)
    width = grid.width
    panel = _PANEL_HEAD + schedule.ranks * _ROW
    legend_rows = _legend_rows(blocks, width)
    height = _HEAD + panel * len(runs) + 52 + 24 * (legend_rows + 1)

    rooted = schedule.collective in ("broadcast", "reduce", "gather", "scatter")
    title = f"{schedule.collective} by {schedule.algorithm}, {schedule.ranks} ranks"
    if rooted:
        title += f", root {schedule.root}"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' "
        f"width='{width}' height='{height}' {_FONT}>",
        "<defs>",
        *(
            f"<marker id='tip{block}' viewBox='0 0 8 8' refX='7.2' refY='4' markerWidth='8' "
            f"markerHeight='8' markerUnits='userSpaceOnUse' orient='auto'>"
            f"<path d='M0 0.6 8 4 0 7.4Z' fill='{colour(block, num_blocks)}'/></marker>"
            for block in blocks
        ),
        "</defs>",
        f"<rect width='{width}' height='{height}' fill='white'/>",
        f"<text x='24' y='34' font-size='19' font-weight='bold' fill='{INK}'>"
        f"{escape(title)}</text>",
        f"<text x='24' y='57' font-size='13' fill='{INK}'>{escape(_subtitle(schedule, runs))}"
        "</text>",
    ]
    for channel, found in zip(channels, runs):
        parts += _panel(schedule, channel, found, _HEAD + panel * channel, num_blocks, grid)
    parts += _legend(blocks, num_blocks, _HEAD + panel * len(runs) + 28, width)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _subtitle(schedule: Schedule, runs: list[Run]) -> str:
    messages = sum(len(found.messages) for found in runs)
    steps = max((found.length for found in runs), default=0)
    if schedule.collective in ("all_reduce", "broadcast", "reduce"):
        unit = "the data"
    elif schedule.collective == "all_to_all":
        unit = "the data of a pair of ranks"
    else:
        unit = "the data of a rank"
    share = "" if schedule.parts == 1 else f"1/{schedule.parts} of "
    return f"{steps} steps, {messages} messages for a round of chunks; a block is {share}{unit}"


def _panel(
    schedule: Schedule, channel: int, found: Run, top: int, num_blocks: int, grid: _Grid
) -> list[str]:
    parts = []
    if len(schedule.weights) > 1:
        share = schedule.weights[channel] / sum(schedule.weights)
        parts.append(
            f"<text x='24' y='{top + 20}' font-size='14' font-weight='bold' fill='{INK}'>"
            f"channel {channel}, {share:.0%} of the data</text>"
        )
    rows = [top + _PANEL_HEAD + _ROW // 2 + rank * _ROW for rank in range(schedule.ranks)]
    for time in range(found.length):
        x = grid.x(time)
        parts.append(
            f"<line x1='{x}' x2='{x}' y1='{top + _PANEL_HEAD - 8}' "
            f"y2='{rows[-1] + _ROW // 2}' stroke='#eef1f4'/>"
            f"<text x='{x}' y='{top + _PANEL_HEAD - 14}' font-size='11' text-anchor='middle' "
            f"fill='#6b7785'>{time}</text>"
        )
    for rank, y in enumerate(rows):
        parts.append(
            f"<line x1='{_LEFT - 10}' x2='{grid.width - 16}' y1='{y}' y2='{y}' stroke='{FAINT}' "
            f"stroke-width='1.5'/>"
            f"<text x='{_LEFT - 20}' y='{y + 5}' font-size='14' text-anchor='end' fill='{INK}'>"
            f"rank {rank}</text>"
        )
    for message in found.messages:
        parts.append(_arrow(message, found, rows, num_blocks, grid))
    for (rank, index), time in sorted(found.times.items()):
        step = schedule.steps(rank, channel)[index]
        parts.append(_node(step, rank, index, grid.x(time), rows[rank], num_blocks))
    return parts


def _arrow(message: Message, found: Run, rows: list[int], num_blocks: int, grid: _Grid) -> str:
    x1 = grid.x(found.times[message.source, message.source_step])
    x2 = grid.x(found.times[message.destination, message.destination_step])
    y1, y2 = rows[message.source], rows[message.destination]
    gap = _RADIUS + 1
    if abs(message.source - message.destination) > 1:
        # Out to the right, through the gutter between the columns, in from the left: never
        # across another rank's node.
        start, end = (x1 + gap, float(y1)), (x2 - gap - 2, float(y2))
        bend = 0.4 * grid.column
        curve = f"C{x1 + bend:.1f} {y1} {x2 - bend:.1f} {y2}"
    else:
        start, end = _towards(x1, y1, x2, y2, gap), _towards(x2, y2, x1, y1, gap + 2)
        curve = "L"
    return (
        f"<path d='M{start[0]:.1f} {start[1]:.1f}{curve} {end[0]:.1f} {end[1]:.1f}' "
        f"fill='none' stroke='{colour(message.block, num_blocks)}' stroke-width='2' "
        f"stroke-opacity='0.85' marker-end='url(#tip{message.block})'><title>block "
        f"{message.block}: rank {message.source} to rank {message.destination}</title></path>"
    )


def _towards(x: float, y: float, cx: float, cy: float, distance: float) -> tuple[float, float]:
    dx, dy = cx - x, cy - y
    length = (dx * dx + dy * dy) ** 0.5 or 1.0
    return x + dx / length * distance, y + dy / length * distance


def _node(step: Step, rank: int, index: int, x: float, y: float, num_blocks: int) -> str:
    return (
        f"<g><title>rank {rank}, step {index}, block {step.block}: {escape(step.sentence())}"
        f"</title>{_glyph(step, x, y, colour(step.block, num_blocks), str(step.block))}</g>"
    )


def _glyph(step: Step, x: float, y: float, ink: str, label: str) -> str:
    """Circle: combines; square: moves. Filled: writes the output. Thick rim: complete."""
    filled = step.writes_output
    rim = f"stroke='{INK if step.finished else ink}' stroke-width='{3 if step.finished else 2}'"
    paint = f"fill='{ink if filled else 'white'}' {rim}"
    if len(step.operands) > 1:
        shape = f"<circle cx='{x}' cy='{y}' r='{_RADIUS}' {paint}/>"
    else:
        half = _RADIUS - 1
        shape = (
            f"<rect x='{x - half}' y='{y - half}' width='{2 * half}' height='{2 * half}' rx='4' "
            f"{paint}/>"
        )
    size = 12 if len(label) < 3 else 10
    return (
        f"{shape}<text x='{x}' y='{y + 4.2}' font-size='{size}' text-anchor='middle' "
        f"font-weight='bold' fill='{'white' if filled else ink}'>{label}</text>"
    )


def _legend_rows(blocks: list[int], width: int) -> int:
    per_row = max(1, (width - 48) // 92)
    return -(-min(len(blocks), _LEGEND_BLOCKS + 1) // per_row)


def _legend(blocks: list[int], num_blocks: int, top: float, width: int) -> list[str]:
    samples = (
        (Step(0, ("in",), (), False, False), "move"),
        (Step(0, ("in", 0), (), False, False), "combine"),
        (Step(0, ("in",), (), True, False), "write the output"),
        (Step(0, ("in", 0), (), True, True), "result complete"),
    )
    parts = []
    x = 36.0
    for step, words in samples:
        parts.append(_glyph(step, x, top, "#6b7785", ""))
        parts.append(f"<text x='{x + 22}' y='{top + 5}' font-size='13' fill='{INK}'>{words}</text>")
        x += 60 + 7.4 * len(words)
    per_row = max(1, (width - 48) // 92)
    shown = blocks[:_LEGEND_BLOCKS]
    for index, block in enumerate(shown):
        bx, by = 24 + index % per_row * 92, top + 30 + index // per_row * 24
        parts.append(
            f"<rect x='{bx}' y='{by - 1}' width='18' height='7' rx='2' "
            f"fill='{colour(block, num_blocks)}'/>"
            f"<text x='{bx + 25}' y='{by + 7}' font-size='12' fill='{INK}'>block {block}</text>"
        )
    if len(blocks) > len(shown):
        index = len(shown)
        bx, by = 24 + index % per_row * 92, top + 30 + index // per_row * 24
        parts.append(
            f"<text x='{bx}' y='{by + 7}' font-size='12' fill='{INK}'>"
            f"and {len(blocks) - len(shown)} more</text>"
        )
    return parts
