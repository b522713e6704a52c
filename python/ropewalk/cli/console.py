"""What all commands share: output, exit status, the option --set."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, NoReturn, Optional

import typer
from rich.console import Console

from ropewalk import errors, settings

OK: Final = 0
WRONG: Final = 1
"""the program ran, and the answer is no: a wrong result, a refused schedule"""
USAGE: Final = 2
FAILURE: Final = 3

SettingOption = Annotated[
    Optional[list[str]],
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set a setting (see `ropewalk config`), over environment and file. Repeatable.",
    ),
]


# What --set before the command gave. Kept until the command applies it: `bench` must fork its ranks
# before the library is loaded.
pending_settings: list[str] = []


def output() -> Console:
    """Standard output: styled on a terminal, plain and unwrapped in a pipe."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=10_000, color_system=None, soft_wrap=True)
    return console


def note() -> Console:
    """Standard error, for messages and progress."""
    return Console(stderr=True, highlight=False)


def write(text: str, path: Optional[Path]) -> None:
    """Writes to a file; to standard output for None and "-"."""
    if path is None or str(path) == "-":
        sys.stdout.write(text)
    else:
        write_file(text, path)


def write_file(text: str, path: Path) -> None:
    """Writes to a file; ends the command when that fails."""
    try:
        path.write_text(text)
    except OSError as error:
        fail(f"{path}: {error.strerror}", USAGE)


def tell(notes: list[str]) -> None:
    """One line each on standard error."""
    for each in notes:
        print(f"ropewalk: {each}", file=sys.stderr)


def fail(message: str, status: int = FAILURE) -> NoReturn:
    """Ends the command with a message on standard error."""
    sys.stdout.flush()
    print(f"ropewalk: {message}", file=sys.stderr)
    raise typer.Exit(status)


def waiting_for_plans(given: list[str]) -> list[str]:
    """With PLANNING=wait in front, unless somebody set it: what is printed is the final choice."""
    rows = {row["name"]: row for row in settings.describe()}
    return given if rows["ROPEWALK_PLANNING"]["source"] != "default" else ["PLANNING=wait", *given]


def apply_settings(given: Optional[list[str]]) -> None:
    """Sets what --set gave, before the command and after it."""
    for entry in [*pending_settings, *(given or [])]:
        name, equals, value = entry.partition("=")
        if not equals:
            fail(f'--set "{entry}" is not NAME=VALUE', USAGE)
        with reported():
            settings.set(name, value, source="command line")


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Turns the library's errors into a message and an exit status."""
    try:
        yield
    except (errors.ArgumentError, errors.UsageError) as error:
        fail(str(error), USAGE)
    except errors.Error as error:
        fail(str(error))
    except MemoryError:
        fail("memory ran out: the machine or the plan is too large for it")
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILURE) from None
