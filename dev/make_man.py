"""Writes docs/man/*.1 from the commands' own help. Usage: python dev/make_man.py [FOLDER].

The pages are made from the same texts and option declarations as `--help`, not from its layout,
which differs between versions of Typer. tests/python/docs_test.py compares both with the pages.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import typer
from ropewalk import __version__, cli
from typer.models import ArgumentInfo, OptionInfo


@dataclass(frozen=True)
class Command:
    """A command as the user names it, with its function and its help."""

    words: tuple[str, ...]
    function: Callable[..., None]
    help: str
    subcommands: tuple[str, ...] = ()

    @property
    def page_name(self) -> str:
        """As in `man ropewalk-bench`."""
        return "-".join(("ropewalk", *self.words))


def commands(app: typer.Typer, help_text: str, words: tuple[str, ...] = ()) -> Iterator[Command]:
    """What the program offers, in the order of the alphabet: the app itself, then its commands."""
    named = {
        info.name or str(getattr(info.callback, "__name__", "")): info
        for info in app.registered_commands
    }
    groups = {str(info.name): info for info in app.registered_groups}
    callback = app.registered_callback
    function = callback.callback if callback is not None else None
    # Groups are written in the order of their file, which is that of work.
    order = sorted([*named, *groups]) if not words else list(named)
    yield Command(words, function or (lambda: None), help_text, tuple(order))
    for name in order:
        if name in groups:
            group = groups[name]
            assert group.typer_instance is not None
            yield from commands(group.typer_instance, str(group.help), (*words, name))
        else:
            info = named[name]
            assert info.callback is not None
            yield Command((*words, name), info.callback, str(info.help))


COMMANDS = tuple(commands(cli.make_app(), cli.HELP))


def parameters(function: Callable[..., None]) -> list[tuple[str, str, bool]]:
    """Each parameter as (how it is written, help, whether it is an option)."""
    found = []
    for hint in typing.get_type_hints(function, include_extras=True).values():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, OptionInfo):
                found.append((_option(info, hint), info.help or "", True))
            elif isinstance(info, ArgumentInfo):
                found.append((str(info.metavar), info.help or "", False))
    return found


def _option(info: OptionInfo, hint: Any) -> str:
    kind = str(hint)
    value = info.metavar
    if value is None and "bool" not in kind:
        value = "FILE" if "Path" in kind else "N" if "int" in kind else "TEXT"
    # In an Annotated, Typer takes the first name for the default and sorts it out later.
    decls = sorted((str(info.default), *(info.param_decls or ())), key=len)
    return ", ".join(decls) + (f" {value}" if value else "")


def escaped(line: str) -> str:
    """A line that roff takes as it is."""
    text = line.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def page(command: Command) -> str:
    """A manual page."""
    paragraphs = command.help.strip().split("\n\n")
    summary = " ".join(paragraphs[0].split()).rstrip(".")
    given = parameters(command.function)
    arguments = [written for written, _, option in given if not option]
    synopsis = " ".join(["ropewalk", *command.words, "[OPTION]...", *arguments])
    if command.subcommands:
        synopsis += " COMMAND [ARGUMENT]..."
    lines = [
        f'.TH "{escaped(command.page_name.upper())}" 1 "" "ropewalk {__version__}" "Ropewalk"',
        ".SH NAME",
        f"{escaped(command.page_name)} \\- {escaped(summary[0].lower() + summary[1:])}",
        ".SH SYNOPSIS",
        escaped(synopsis),
        ".SH DESCRIPTION",
    ]
    tail: list[str] = []
    target = lines
    for paragraph in paragraphs:
        if paragraph == "Examples:":
            target = tail
            target.append(".SH EXAMPLES")
        elif paragraph.startswith("Exit status:"):
            text = paragraph.partition(":")[2].strip()
            tail += [".SH EXIT STATUS", *(escaped(line) for line in text.split("\n"))]
        elif paragraph.startswith("\b\n"):
            body = paragraph[2:].split("\n")
            target += [".PP", ".nf", *(escaped(line) for line in body), ".fi"]
        else:
            target += [".PP", *(escaped(line) for line in paragraph.split("\n"))]
    for heading, wanted in (("ARGUMENTS", False), ("OPTIONS", True)):
        chosen = [(written, words) for written, words, option in given if option == wanted]
        if wanted:
            chosen.append(("-h, --help", "Show the help and exit."))
        if chosen:
            lines.append(f".SH {heading}")
        for written, words in chosen:
            lines += [".TP", f".B {escaped(written)}", escaped(words)]
    if command.subcommands:
        lines.append(".SH COMMANDS")
        for name in command.subcommands:
            lines += [".TP", f".B {name}", f"See {escaped(command.page_name)}\\-{name}(1)."]
    return "\n".join([*lines, *tail]) + "\n"


def pages() -> dict[str, str]:
    """File name to text, for every command."""
    return {f"{command.page_name}.1": page(command) for command in COMMANDS}


def main() -> None:
    default = Path(__file__).parent.parent / "docs" / "man"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
