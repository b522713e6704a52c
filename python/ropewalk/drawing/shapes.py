"""SVG from shapes: a canvas that collects elements, and the look that all pictures share."""

from __future__ import annotations

from html import escape
from typing import Final, Union

INK: Final = "#1f2933"
SOFT: Final = "#52606d"
FAINT: Final = "#c8d0d8"
PAPER: Final = "#ffffff"
FONT: Final = "DejaVu Sans, Helvetica, Arial, sans-serif"

# Told apart at a glance, also in grey and by most colour-blind readers (after Okabe and Ito).
PALETTE: Final = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#b5568f",
    "#8a6d00",
    "#4b3f9e",
    "#2f8fbf",
    "#7a4b2a",
)

Value = Union[str, int, float]


def number(value: float) -> str:
    """With one decimal at most: "12", "12.5"."""
    return f"{value:.1f}".removesuffix(".0")


class Canvas:
    """Elements in the order in which they are drawn: later ones over earlier ones."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width = width
        self.height = height
        self._title = title
        self._parts: list[str] = []

    def add(self, element: str, text: str = "", /, **attributes: Value) -> None:
        """An element; underscores in the names of attributes become hyphens."""
        written = " ".join(
            f"{key.rstrip('_').replace('_', '-')}="
            f'"{escape(number(value) if isinstance(value, float) else str(value))}"'
            for key, value in attributes.items()
        )
        inner = f">{escape(text)}</{element}>" if text else "/>"
        self._parts.append(f"<{element} {written}{inner}")

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        fill: str = INK,
        weight: str = "normal",
        anchor: str = "middle",
    ) -> None:
        """A line of text; `y` is its base line."""
        self.add(
            "text",
            text,
            x=float(x),
            y=float(y),
            font_size=float(size),
            fill=fill,
            font_weight=weight,
            text_anchor=anchor,
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = PAPER,
        stroke: str = INK,
        radius: float = 6,
        stroke_width: float = 1.2,
    ) -> None:
        """A rectangle with round corners; x and y are its upper left corner."""
        self.add(
            "rect",
            x=float(x),
            y=float(y),
            width=float(width),
            height=float(height),
            rx=float(radius),
            fill=fill,
            stroke=stroke,
            stroke_width=float(stroke_width),
        )

    def curve(
        self,
        path: str,
        *,
        stroke: str,
        stroke_width: float,
        opacity: float = 1,
        dashes: str = "",
        marker: str = "",
    ) -> None:
        """A line along an SVG path."""
        more: dict[str, Value] = {
            "stroke_linecap": "butt" if dashes else "round",
            **({"stroke_dasharray": dashes} if dashes else {}),
            **({"marker_end": marker} if marker else {}),
            **({"opacity": f"{opacity:.2f}"} if opacity != 1 else {}),
        }
        self.add(
            "path", "", d=path, fill="none", stroke=stroke, stroke_width=float(stroke_width), **more
        )

    def raw(self, element: str) -> None:
        """An element as it stands (markers, groups)."""
        self._parts.append(element)

    def svg(self) -> str:
        """The whole picture."""
        size = f"{number(self.width)} {number(self.height)}"
        head = (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {size}' "
            f"width='{number(self.width)}' height='{number(self.height)}' font-family='{FONT}'>"
        )
        back = f"<rect width='{number(self.width)}' height='{number(self.height)}' fill='{PAPER}'/>"
        return "\n".join(
            [head, f"<title>{escape(self._title)}</title>", back, *self._parts, "</svg>", ""]
        )
