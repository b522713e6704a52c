"""`ropewalk launch`: a job's ranks on several hosts, by ssh."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Annotated, Final, Optional

import typer

from ropewalk.cli import console
from ropewalk.launching import Host, Job, Options, read_hosts

HELP: Final = """
Start a command as the ranks of a job, on the hosts of a file, and wait for it.

Each line of the file has a host as ssh takes it, and how many ranks run there: "NAME",
"NAME slots=N" or "NAME:N". # starts a comment. Ranks are numbered in the order of the file. This
host, by its name or as localhost, needs no ssh; without a file all ranks run here.

Nothing is copied: the program must be on each host already. It runs in this directory where the
host has it, else in the home directory, with the settings ROPEWALK_* of this environment and what
--env names. It gets the rank variables of Ropewalk and of torchrun (ROPEWALK_RANK, RANK,
LOCAL_RANK, ...) and a rendezvous, on several hosts by TCP with a secret that goes through the
connection of ssh and is in a file of the user's alone while the rank runs.

Lines of the ranks' output begin with their number. Standard input is empty. When a rank ends in
error, the others get --grace seconds to end by themselves, then SIGTERM, then SIGKILL. Ctrl-C is
passed on; the second one kills all. The ranks of a host that loses the launcher are ended too.

Log in once without a password (keys, an agent), since ssh may not ask: BatchMode is on.

Examples:

\b
  ropewalk launch --hosts hosts.txt -- python train.py
      as many ranks as the file has slots
  ropewalk launch --hosts hosts.txt -n 4 --env OMP_NUM_THREADS=8 -- ./program
      the first four slots, with a variable
  ropewalk launch --hosts hosts.txt --ssh "ssh -F cluster.conf" -- hostname
      another configuration of ssh
  ropewalk launch -n 2 -- ropewalk bench all_reduce
      two ranks on this host

The exit status is that of the first rank that ended in error; 255 when a host could not be reached,
128 and the signal's number after a signal, 2 for a wrong command line.
"""

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PREFIXES: Final = ("rank", "host", "none")


def launch(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="The program and its arguments, after --."),
    ],
    hosts: Annotated[
        Optional[Path], typer.Option("--hosts", help="File of hosts (this host).")
    ] = None,
    ranks: Annotated[
        Optional[int], typer.Option("-n", "--ranks", help="So many ranks (all slots).")
    ] = None,
    env: Annotated[
        Optional[list[str]],
        typer.Option(
            "--env",
            metavar="NAME[=VALUE]",
            help="Set this variable, by default as it is here. Repeatable.",
        ),
    ] = None,
    directory: Annotated[
        Optional[str], typer.Option("--cwd", help="Working directory, which all hosts must have.")
    ] = None,
    ssh: Annotated[str, typer.Option("--ssh", help="The program ssh, with options.")] = "ssh",
    connect_timeout: Annotated[
        float, typer.Option("--connect-timeout", help="Seconds in which a host must begin.")
    ] = 20.0,
    grace: Annotated[
        float, typer.Option("--grace", help="Seconds between a rank's error and the others' end.")
    ] = 5.0,
    port: Annotated[
        Optional[int],
        typer.Option("--port", help="Where ranks meet on the first host (a random one)."),
    ] = None,
    address: Annotated[
        Optional[str],
        typer.Option("--address", help="Under which hosts reach the first one (by its name)."),
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Of lines of output: rank, host or none.")
    ] = "rank",
    set_: console.SettingOption = None,
) -> None:
    """See HELP."""
    if prefix not in _PREFIXES:
        console.fail(f"--prefix {prefix}: rank, host or none", console.USAGE)
    if ranks is not None and ranks < 1:
        console.fail(f"-n {ranks}: must be 1 or more", console.USAGE)
    for flag, value in (("--connect-timeout", connect_timeout), ("--grace", grace)):
        if not 0 < value < 1e6:
            console.fail(f"{flag} {value:g}: must be above 0", console.USAGE)
    if port is not None and not 1 <= port <= 65534:
        console.fail(f"--port {port}: must be from 1 to 65534", console.USAGE)
    with console.reported():
        found = read_hosts(hosts) if hosts is not None else [Host("localhost", ranks or 1)]
    slots = sum(host.slots for host in found)
    if ranks is not None and ranks > slots:
        console.fail(f"-n {ranks}: the hosts have {slots} slots", console.USAGE)
    program = _split(ssh)
    options = Options(
        ssh=program,
        connect_timeout=connect_timeout,
        grace=grace,
        port=port,
        address=address,
        folder=directory,
        prefix={
            "rank": lambda rank, _: f"[{rank}] ",
            "host": lambda rank, host: f"[{rank} {host.name}] ",
            "none": lambda _rank, _host: "",
        }[prefix],
        variables={**_settings(set_), **_variables(env or [])},
    )
    with console.reported():
        status = Job(found, ranks or slots, command, options).run()
    if status != 0:
        raise typer.Exit(status)


def _split(ssh: str) -> list[str]:
    try:
        words = shlex.split(ssh)
    except ValueError as error:
        console.fail(f"--ssh: {error}", console.USAGE)
    if not words:
        console.fail("--ssh: names no program", console.USAGE)
    return words


def _settings(given: Optional[list[str]]) -> dict[str, str]:
    """The ranks read settings from their environment; bad ones are told here."""
    entries = [*console.pending_settings, *(given or [])]
    if entries:
        console.apply_settings(given)
    found = {}
    for entry in entries:
        name, _, value = entry.partition("=")
        found["ROPEWALK_" + name.upper().removeprefix("ROPEWALK_")] = value
    return found


def _variables(given: list[str]) -> dict[str, str]:
    found = {}
    for entry in given:
        name, equals, value = entry.partition("=")
        if not _VARIABLE.fullmatch(name):
            console.fail(f'--env "{entry}": "{name}" is not the name of a variable', console.USAGE)
        if not equals and name not in os.environ:
            console.fail(f"--env {name}: is not set here; give --env {name}=VALUE", console.USAGE)
        found[name] = value if equals else os.environ[name]
    return found
