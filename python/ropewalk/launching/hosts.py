"""Files of hosts, as launchers read them: a host on each line, and how many ranks it takes."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Optional

from ropewalk.errors import ArgumentError

MOST_SLOTS: Final = 65536
# No leading "-": ssh would take it for an option.
_NAME: Final = re.compile(r"(?:[\w.][\w.+-]*@)?[\w.\[:][\w.:%\]-]*")


@dataclass(frozen=True)
class Host:
    """Where ranks run."""

    name: str
    """as ssh takes it: a name of its configuration, a host name or an address, with or without
    USER@"""
    slots: int = 1
    """ranks that it takes"""

    @property
    def is_local(self) -> bool:
        """Whether it is this host by its name: then no ssh is needed."""
        own = socket.gethostname()
        return self.name in ("localhost", own, own.partition(".")[0])


def read_hosts(path: Path) -> list[Host]:
    """Reads lines NAME, NAME slots=N (as Open MPI) or NAME:N (as MPICH); # starts a comment.

    Raises:
        ArgumentError: the file cannot be read, has no host, one twice, or a line that is none.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise ArgumentError(f"{path}: {reason}") from error
    hosts: list[Host] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        host = _parse(words, f"{path}:{number}")
        if host.name in seen:
            raise ArgumentError(
                f"{path}:{number}: host {host.name} stands in line {seen[host.name]} already; "
                "give it slots=N for several ranks"
            )
        seen[host.name] = number
        hosts.append(host)
    if not hosts:
        raise ArgumentError(f"{path}: names no host")
    return hosts


def _parse(words: list[str], where: str) -> Host:
    name, slots = words[0], "1"
    # A single colon: the address of IPv6 has more, unless it is in brackets.
    short = re.fullmatch(r"([^:]+|\[[^\]]+\]):(\d+)", name)
    if short is not None:
        name, slots = short.group(1).strip("[]"), short.group(2)
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if key != "slots" or not equals or short is not None:
            raise ArgumentError(f'{where}: "{word}" is not slots=N')
        slots = value
    if not _NAME.fullmatch(name):
        raise ArgumentError(f'{where}: "{name}" is not the name of a host')
    if not slots.isdecimal() or not 1 <= int(slots) <= MOST_SLOTS:
        raise ArgumentError(f'{where}: slots "{slots}" is no number from 1 to {MOST_SLOTS}')
    return Host(name, int(slots))


def ssh_name(host: Host, ssh: Sequence[str]) -> str:
    """The host name or address that ssh's configuration has for `host`; else its own name."""
    plain = host.name.rpartition("@")[2]
    if host.is_local:
        return plain
    try:
        told = subprocess.run(
            [*ssh, "-G", host.name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return plain  # a program that is called as ssh is, and has no -G
    for line in told.stdout.splitlines():
        if line.startswith("hostname "):
            return line.partition(" ")[2].strip()
    return plain


def own_address_towards(name: str) -> Optional[str]:
    """This host's address on the way to host `name`; None when there is none."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            name, 9, type=socket.SOCK_DGRAM
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # sends nothing
                return str(probe.getsockname()[0])
    except OSError:
        pass
    return None


def reachable_address(name: str) -> str:
    """The address of `name`, as long as it is no loopback address; else `name`.

    On many systems a host's own name leads it to its loopback interface, where nobody else can
    connect to it.
    """
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return name
    address = str(found[0][4][0])
    return name if address.startswith("127.") or address == "::1" else address
