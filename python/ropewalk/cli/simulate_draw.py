"""How busy links are over time, as SVG: a row per link, time to the right, darker is busier."""

from __future__ import annotations

import math
import re
from html import escape
from typing import Any, Final

from ropewalk.cli.quantities import decimal_bytes

_ROWS: Final = 64
_LEFT: Final = 250
_WIDTH: Final = 720
_ROW: Final = 16
_HEAD: Final = 96
_RIGHT: Final = 76
_INK: Final = "#1f2933"
_FONT: Final = "font-family='DejaVu Sans, Helvetica, Arial, sans-serif'"


def colour(share: float) -> str:
    """White for idle, through blue, to dark for full: told apart in grey too."""
    stops = ((255, 255, 255), (158, 202, 225), (33, 113, 181), (8, 29, 88))
    at = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    low = min(int(at), len(stops) - 2)
    mixed = [round(a + (b - a) * (at - low)) for a, b in zip(stops[low], stops[low + 1])]
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _natural(name: str) -> list[tuple[str, int]]:
    """A name to sort by, so that gpu2 comes before gpu10."""
    return [(text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def _round_step(most: float) -> float:
    """1, 2 or 5 times a power of ten: the least that divides `most` into six parts or fewer."""
    power = 10.0 ** math.floor(math.log10(most / 6))
    return next(power * factor for factor in (1, 2, 5, 10) if most / (power * factor) <= 6)


def svg(report: dict[str, Any]) -> str:
    """The picture of a simulation's report: its busiest links, busiest first."""
    links = sorted(
        report["links"],
        key=lambda link: (
            -round(link["utilisation"], 2),
            link["type"],
            _natural(link["source"]),
            _natural(link["destination"]),
        ),
    )
    left_out = max(0, len(links) - _ROWS)
    links = links[:_ROWS]
    height = _HEAD + _ROW * len(links) + 84
    width = _LEFT + _WIDTH + _RIGHT
    title = f"{report['collective']} by {report['algorithm']} on {report['topology']}"
    facts = (
        f"{decimal_bytes(report['bytes'])} over {report['ranks']} ranks "
        f"in {_time(report['seconds'])}: "
        f"{report['algbw_gbps']:.2f} GB/s, {report['ratio']:.1%} of the analytic rate "
        f"({report['engine']})"
    )
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' "
        f"height='{height}' {_FONT}>",
        f"<rect width='{width}' height='{height}' fill='white'/>",
        f"<text x='24' y='34' font-size='19' font-weight='bold' fill='{_INK}'>"
        f"{escape(title)}</text>",
        f"<text x='24' y='58' font-size='13' fill='{_INK}'>{escape(facts)}</text>",
        f"<text x='{_LEFT + _WIDTH + 8}' y='{_HEAD - 8}' font-size='11' fill='{_INK}'>mean</text>",
    ]
    span = max(report["seconds"], report["bin_seconds"])
    for row, link in enumerate(links):
        y = _HEAD + row * _ROW
        label = f"{link['source']} → {link['destination']} ({link['type']} {link['capacity']:g})"
        parts.append(
            f"<text x='{_LEFT - 8}' y='{y + 12}' font-size='11' text-anchor='end' fill='{_INK}'>"
            f"{escape(label)}</text>"
        )
        for index, share in enumerate(link["over_time"]):
            begin = index * report["bin_seconds"] / span * _WIDTH
            end = min((index + 1) * report["bin_seconds"] / span, 1.0) * _WIDTH
            last = min(max(end, begin) + 0.5, _WIDTH)
            parts.append(
                # Half a point under the next one: no seams between bins.
                f"<rect x='{_LEFT + begin:.1f}' y='{y}' width='{last - begin:.1f}' "
                f"height='{_ROW - 3}' fill='{colour(share)}' shape-rendering='crispEdges'/>"
            )
        parts.append(
            f"<rect x='{_LEFT}' y='{y}' width='{_WIDTH}' height='{_ROW - 3}' fill='none' "
            f"stroke='#c8d0d8' stroke-width='0.6'/>"
            f"<text x='{_LEFT + _WIDTH + 8}' y='{y + 12}' font-size='11' fill='{_INK}'>"
            f"{link['utilisation']:.0%}</text>"
        )
    bottom = _HEAD + _ROW * len(links)
    step = _round_step(span)
    for tick in range(int(span / step) + 1):
        x = _LEFT + _WIDTH * tick * step / span
        parts.append(
            f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{bottom}' y2='{bottom + 5}' stroke='{_INK}'/>"
            f"<text x='{x:.1f}' y='{bottom + 19}' font-size='11' text-anchor='middle' "
            f"fill='{_INK}'>{_time(tick * step) if tick else '0'}</text>"
        )
    parts += _legend(bottom + 40, left_out)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _legend(y: int, left_out: int) -> list[str]:
    parts = [f"<text x='{_LEFT}' y='{y + 11}' font-size='11' fill='{_INK}'>idle</text>"]
    for step in range(21):
        parts.append(
            f"<rect x='{_LEFT + 34 + step * 8}' y='{y}' width='8' height='13' "
            f"fill='{colour(step / 20)}'/>"
        )
    parts.append(f"<text x='{_LEFT + 210}' y='{y + 11}' font-size='11' fill='{_INK}'>full</text>")
    if left_out:
        parts.append(
            f"<text x='{_LEFT + 270}' y='{y + 11}' font-size='11' fill='{_INK}'>"
            f"{left_out} more links, no busier than these, are not shown</text>"
        )
    return parts
