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
from conftest import Program

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


def test_man_pages_tell_what_help_tells(program: Program) -> None:
    """Every flag of `--help`, every example and every sentence before them."""
    for command in load("make_man").COMMANDS:
        shown = program(*command.words, "--help").stdout
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


def test_every_file_that_the_readme_links_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        if "://" not in target:
            assert (ROOT / target).exists(), target
