"""Writes docs/man/*.1 from the commands' own help. Usage: python dev/make_man.py [FOLDER].

The pages are made from the same texts and option declarations as `--help`, not from its layout,
which differs between versions of Typer. tests/python/docs_test.py compares both with the pages.
"""

from __future__ import annotations

import sys
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from ropewalk import __version__, cli
from ropewalk.cli import (
    bench,
    bind,
    check_plugin,
    config,
    microbench,
    nccl,
    p2p,
    plan,
    run,
    schedule,
    simulate,
    topo,
)
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


COMMANDS = (
    Command(
        (),
        cli.root,
        cli.HELP,
        (
            "bench",
            "bind",
            "check-plugin",
            "config",
            "microbench",
            "nccl-env",
            "nccl-graph",
            "p2p",
            "plan",
            "run",
            "schedule",
            "simulate",
            "topo",
        ),
    ),
    Command(("bench",), bench.bench, bench.HELP),
    Command(("bind",), bind.bind, bind.HELP),
    Command(("check-plugin",), check_plugin.check_plugin, check_plugin.HELP),
    Command(("config",), config.config, config.HELP),
    Command(("microbench",), microbench.microbench, microbench.HELP),
    Command(("nccl-env",), nccl.nccl_env, nccl.ENV_HELP),
    Command(("nccl-graph",), nccl.nccl_graph, nccl.GRAPH_HELP),
    Command(("p2p",), p2p.p2p, p2p.HELP),
    Command(("plan",), plan.plan, plan.HELP),
    Command(("run",), run.run, run.HELP),
    Command(("schedule",), lambda: None, schedule.HELP, ("make", "show", "check", "draw")),
    Command(("schedule", "make"), schedule.make, schedule.MAKE_HELP),
    Command(("schedule", "show"), schedule.show, schedule.SHOW_HELP),
    Command(("schedule", "check"), schedule.check, schedule.CHECK_HELP),
    Command(("schedule", "draw"), schedule.draw, schedule.DRAW_HELP),
    Command(("simulate",), simulate.simulate, simulate.HELP),
    Command(("topo",), topo.topo, topo.HELP),
)


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
