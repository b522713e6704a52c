"""Writes docs/man/*.1 from the program's own help. Usage: python dev/make_man.py [FOLDER].

tests/python/docs_test.py compares the pages with the help.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from ropewalk import __version__

COMMANDS = (
    (),
    ("bench",),
    ("config",),
    ("schedule",),
    ("schedule", "make"),
    ("schedule", "show"),
    ("schedule", "check"),
    ("schedule", "draw"),
)


def help_text(command: tuple[str, ...]) -> str:
    """The help of a command, at a fixed width so that pages do not depend on the terminal."""
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    program = "from ropewalk.cli import app; app(prog_name='ropewalk')"
    done = subprocess.run(
        [sys.executable, "-c", program, *command, "--help"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    return done.stdout


def escaped(line: str) -> str:
    """A line that roff takes as it is."""
    text = line.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def page(command: tuple[str, ...], text: str) -> str:
    """A manual page: the help's parts under a manual's headings."""
    name = "-".join(("ropewalk", *command))
    usage, _, rest = text.strip().partition("\n\n")
    summary, _, body = rest.partition("\n\n")
    one_line = " ".join(summary.split()).rstrip(".")
    lines = [
        f'.TH {name.upper().replace("-", chr(92) + "-")} 1 "" "ropewalk {__version__}" "Ropewalk"',
        ".SH NAME",
        f"{escaped(name)} \\- {escaped(one_line[0].lower() + one_line[1:])}",
        ".SH SYNOPSIS",
        ".nf",
        escaped(re.sub(r"^Usage:\s*", "", usage)),
        ".fi",
        ".SH DESCRIPTION",
        ".nf",
    ]
    for line in body.split("\n"):
        heading = re.fullmatch(
            r"\s{0,2}(Examples|Exit status|Arguments|Options|Commands):\s*(.*)", line
        )
        if heading:
            lines += [".fi", f".SH {heading.group(1).upper()}", ".nf"]
            line = heading.group(2)
        if line.strip() or lines[-1] not in (".nf", ""):
            lines.append(escaped(line.rstrip()))
    return "\n".join([*lines, ".fi"]) + "\n"


def pages() -> dict[str, str]:
    """File name to text, for every command."""
    return {
        "-".join(("ropewalk", *command)) + ".1": page(command, help_text(command))
        for command in COMMANDS
    }


def main() -> None:
    default = Path(__file__).parent.parent / "docs" / "man"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
