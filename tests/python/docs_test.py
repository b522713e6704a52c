"""Pages that are made from the program are as the program is. `make docs` makes them."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from ropewalk.cli import make_app
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parent.parent.parent


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "dev" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_man_pages_are_current() -> None:
    made = load("make_man").pages()
    kept = {path.name: path.read_text() for path in (ROOT / "docs" / "man").glob("*.1")}
    assert sorted(kept) == sorted(made)
    for name, text in made.items():
        assert kept[name] == text, f"{name} is old; run `make docs`"


def test_man_pages_tell_what_help_tells() -> None:
    """Every flag of `--help`, every example and every sentence before them."""
    app = make_app()  # in this process: forty of the program's own take ten seconds to start
    for command in load("make_man").COMMANDS:
        shown = CliRunner().invoke(app, [*command.words, "--help"], prog_name="ropewalk").stdout
        page = (ROOT / "docs" / "man" / f"{command.page_name}.1").read_text()
        text = " ".join(page.replace("\\-", "-").split())
        flags = set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", shown.partition("Options:")[2]))
        assert flags
        for flag in flags:
            assert re.search(rf"(?<![\w-]){flag}(?![\w-])", text), (command.words, flag)
        examples = re.findall(r"^ +(ropewalk .*?)$", shown.partition("Examples:")[2], flags=re.M)
        assert examples
        for example in examples:
            assert " ".join(example.split()) in text, example


def test_man_pages_are_readable_by_man() -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    for path in (ROOT / "docs" / "man").glob("*.1"):
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""


def test_settings_page_is_current() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == load("make_settings_page").page()


def pages() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]
    found += [*(ROOT / "benchmarks").rglob("*.md"), *(ROOT / "tests").rglob("*.md")]
    return sorted(found)


def text_of(page: Path) -> str:
    """Without blocks of code, whose comments look like headings."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The anchors of the page's headings."""
    headings = re.findall(r"^#+ (.*)", text_of(page), flags=re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if "://" in link:
            continue
        name, _, heading = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.exists(), link
        assert not heading or heading in anchors(target), link


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_source_file_that_a_page_names_is_there(page: Path) -> None:
    """By its path from one of the folders that pages begin paths with; build/ is made, not kept."""
    begins = ("", "src", "src/executor", "include", "python/ropewalk")
    for name in re.findall(r"`((?:[\w.-]+/)+[\w-]+\.(?:h|cc|cuh|inc|py|json|txt))`", text_of(page)):
        made = name.startswith("build/")
        assert made or any((ROOT / folder / name).exists() for folder in begins), name


def test_kept_results_are_named_by_a_page() -> None:
    """Nobody finds one that no page names. A table stands for the JSON and picture beside it."""
    text = "".join(page.read_text() for page in pages())
    tables = [path.name for path in (ROOT / "benchmarks" / "results").glob("*.txt")]
    assert [name for name in tables if name not in text] == []
