"""Pages that are made from the program are as the program is. `make docs` makes them."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "dev" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(text: str) -> list[str]:
    """The words alone: how help is wrapped differs between versions of Typer."""
    text = re.sub(r"^\.\w+.*$", "", text, flags=re.M)
    kinds = r"<\w+>|\b(TEXT|INTEGER|PATH|str|int|path)\b|\[required\]|\[default: [^\]]*\]"
    return re.sub(kinds, "", text.replace("\\-", "-")).split()


def test_man_pages_are_current() -> None:
    made = load("make_man").pages()
    kept = {path.name: path.read_text() for path in (ROOT / "docs" / "man").glob("*.1")}
    assert sorted(kept) == sorted(made)
    for name, text in made.items():
        assert words(kept[name]) == words(text), f"{name} is old; run `make docs`"


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


def test_every_file_that_the_readme_links_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        if "://" not in target:
            assert (ROOT / target).exists(), target
