"""benchmarks/works: the page has what the program runs, and what it names is there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks/works"


def works(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run"), *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def commands() -> dict[str, str]:
    lines = works()[1].splitlines()
    return {first.split()[0]: second.strip() for first, second in zip(lines[::2], lines[1::2])}


def test_the_page_has_the_programs_table() -> None:
    status, page, _ = works("--page")
    assert status == 0
    assert page in (FOLDER / "README.md").read_text()


def test_every_experiment_has_what_was_published() -> None:
    text = (FOLDER / "README.md").read_text().partition("## Beside what was published")[2]
    told = set(re.findall(r"`([a-z0-9.-]+)`", "".join(re.findall(r"^\| (`.*?) \|", text, re.M))))
    assert told == set(commands())


def test_what_is_named_is_there() -> None:
    for file in re.findall(r"\]\(\.\./\.\./([^)]*)\)", (FOLDER / "README.md").read_text()):
        assert (ROOT / file).exists(), file
    from ropewalk.cli import COMMANDS

    for name, command in commands().items():
        words = shlex.split(command)
        if words[0] == "ropewalk":
            assert words[1] in COMMANDS, name
        elif not words[0].startswith("build/"):
            assert (ROOT / words[0]).exists(), name


def test_an_unknown_experiment_is_refused() -> None:
    status, _, err = works("blink-99")
    assert status == 2
    assert "blink-99: none of thesis-5.2-5.6" in err
