"""Pictures that benchmarks draw of what is kept: nothing lies over a title or a legend."""

from __future__ import annotations

import importlib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results"

pytest.importorskip("matplotlib")


@contextmanager
def module_of(folder: str, name: str, *others: str) -> Iterator[ModuleType]:
    """A module of a benchmark; its name, and `others` that it imports, are too common to stay."""
    before = {each: sys.modules.pop(each) for each in (name, *others) if each in sys.modules}
    sys.path.insert(0, str(BENCHMARKS / folder))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.pop(0)
        for each in (name, *others):
            sys.modules.pop(each, None)
        sys.modules.update(before)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures, which the benchmarks close once they are in a file."""
    from matplotlib import pyplot

    figures: list[Any] = []
    monkeypatch.setattr(pyplot, "close", figures.append)
    return figures


def boxes(figure: Any) -> dict[str, Any]:
    """Where each text of the figure's own and of its axes lies, and each axes' frame."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    found = {
        f"legend {i}": each.get_window_extent(renderer) for i, each in enumerate(figure.legends)
    }
    if figure.get_suptitle():
        found["title"] = figure._suptitle.get_window_extent(renderer)
    for i, axes in enumerate(figure.axes):
        found[f"axes {i}"] = axes.get_window_extent(renderer)
        found[f"title of axes {i}"] = axes.title.get_window_extent(renderer)
        labels = [label.get_window_extent(renderer) for label in axes.get_xticklabels()]
        for place, label in enumerate(box for box in labels if box.width > 1):
            found[f"label {place} of axes {i}"] = label
    return found


def overlaps(figure: Any) -> list[str]:
    """Pairs of which one hides a part of the other; rotated labels are beside each other."""
    pairs = itertools.combinations(boxes(figure).items(), 2)
    return [
        f"{one} and {other}"
        for (one, first), (other, second) in pairs
        if not (one.startswith("label") and other.startswith("label"))
        and first.overlaps(second)
        and min(first.x1, second.x1) - max(first.x0, second.x0) > 1
        and min(first.y1, second.y1) - max(first.y0, second.y0) > 1
    ]


@pytest.mark.parametrize("file", ["2xh200", "4xh100", "4xh200"])
def test_nccl_compare(file: str, drawn: list[Any], tmp_path: Path) -> None:
    result = json.loads((RESULTS / f"nccl-compare-{file}.json").read_text())
    with module_of("nccl_compare", "picture", "table") as picture:
        picture.draw(result, tmp_path / "out.svg")
    (figure,) = drawn
    assert {"title", "legend 0"} <= boxes(figure).keys()
    assert overlaps(figure) == []


@pytest.mark.parametrize("name", ["links", "hosts"])
def test_emulation(name: str, drawn: list[Any], tmp_path: Path) -> None:
    rows = json.loads((RESULTS / f"emulation-{name}.json").read_text())
    file = tmp_path / "out.svg"
    with module_of("emulation", "pictures", "dgx") as pictures:
        getattr(pictures, f"draw_{name}")(rows, file)
    (figure,) = drawn
    assert overlaps(figure) == []
    shown = " ".join(text.get_text() for axes in figure.axes for text in axes.get_xticklabels())
    titles = [axes.get_title() for axes in figure.axes]
    if name == "links":
        assert all(f"{row['machine']} {row['gpus']}\n" in shown for row in rows)
    else:
        assert titles == list(dict.fromkeys(key.split()[0] for key in rows))
        assert all(row["chosen"] in shown for row in rows.values())
    # What is kept is of the same figures: paths of the same form, wherever Matplotlib puts them.
    kept = (RESULTS / f"emulation-{name}.svg").read_text()
    for drawing in (kept, file.read_text()):
        assert len(re.findall(r'<g id="axes_', drawing)) == len(figure.axes)


def test_links_are_those_of_the_table() -> None:
    table = (RESULTS / "emulation-links.txt").read_text()
    for row in json.loads((RESULTS / "emulation-links.json").read_text()):
        begin = f"{row['machine']:<12}{row['gpus']:<8}{row['link']:<28}"
        assert f"{begin}{row['capacity']:>9.2f}{row['measured']:>10.2f}" in table
