"""A job: its ranks' processes on all hosts, their output, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO, Callable, Final, Optional

from ropewalk.launching import hosts as names
from ropewalk.launching.hosts import Host
from ropewalk.launching.script import REMOTE_SHELL, begin_mark, end_mark, script

# Connections to one host that have not logged in yet: sshd refuses more than ten (MaxStartups).
_LOGINS_AT_ONCE: Final = 8
# A line that has no end is passed on in parts.
_MOST_LINE: Final = 1 << 16
# After SIGKILL was passed on: a host that does not answer gets its ssh ended.
_AFTER_KILL_SECONDS: Final = 2.0
# After a rank's process ended: a process that the command left behind may hold its output open.
_OUTPUT_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.03
# Of the rendezvous, unless --port says: below the ports that Linux gives to clients.
_PORTS: Final = (20000, 32000)
# What a launcher that started this one says is not what these ranks are.
_OWN_NAMES: Final = (
    "ROPEWALK_RANK",
    "ROPEWALK_WORLD_SIZE",
    "ROPEWALK_RENDEZVOUS",
    "ROPEWALK_SECRET_FILE",
)


@dataclass(frozen=True)
class Options:
    """How a job is started."""

    ssh: Sequence[str] = ("ssh",)
    """the program, with its options"""
    connect_timeout: float = 20.0
    """seconds in which a host must have begun a rank"""
    grace: float = 5.0
    """seconds between a rank's error and SIGTERM for the others, and between that and SIGKILL"""
    port: Optional[int] = None
    """of the rendezvous on the first host"""
    address: Optional[str] = None
    """under which the others reach the first host"""
    folder: Optional[str] = None
    """working directory, which must be there; by default this one's, where the host has it"""
    prefix: Callable[[int, Host], str] = lambda rank, host: f"[{rank}] "
    variables: Mapping[str, str] = field(default_factory=dict)
    """further ones for the ranks"""


@dataclass
class _Rank:
    number: int
    host: Host
    on_host: int
    """among the ranks of its host"""
    process: Optional[subprocess.Popen[bytes]] = None
    begun: asyncio.Event = field(init=False)  # made in the loop: Python 3.9 binds it to that
    ended: asyncio.Event = field(init=False)
    status: Optional[int] = None
    """the command's"""
    said: list[str] = field(default_factory=list)
    """by ssh, before the command began"""


class Job:
    """Ranks on hosts, in the order of the hosts, that run one command."""

    def __init__(
        self, hosts: Sequence[Host], ranks: int, command: Sequence[str], options: Options
    ) -> None:
        """`ranks` must not be more than the hosts' slots."""
        self._command = list(command)
        self._options = options
        self._token = secrets.token_hex(16)
        self._ranks: list[_Rank] = []
        for host in hosts:
            for on_host in range(min(host.slots, ranks - len(self._ranks))):
                self._ranks.append(_Rank(len(self._ranks), host, on_host))
        self._hosts = list(dict.fromkeys(rank.host for rank in self._ranks))
        self._status = 0
        self._ending: Optional[asyncio.Task[None]] = None
        self._interrupts = 0
        self._sent: set[int] = set()
        self._secret = secrets.token_hex(32) if len(self._hosts) > 1 else None

    def run(self) -> int:
        """Starts all ranks and waits for them.

        Returns:
            the exit status of the first rank that ended in error; 128 and a signal's number when
            that ended the job; 255 when a host could not be reached.
        """
        return asyncio.run(self._run())

    async def _run(self) -> int:
        for rank in self._ranks:
            rank.begun, rank.ended = asyncio.Event(), asyncio.Event()
        shared = await asyncio.get_running_loop().run_in_executor(None, self._shared_variables)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._signalled, number)
        gates = {host: asyncio.Semaphore(_LOGINS_AT_ONCE) for host in self._hosts}
        # Not asyncio's processes: the end of one is told only when its output has ended too.
        watching = loop.create_task(self._watch())
        try:
            await asyncio.gather(
                *(self._run_rank(rank, shared, gates[rank.host]) for rank in self._ranks)
            )
        finally:
            watching.cancel()
            if self._ending is not None:
                self._ending.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._ending
            for rank in self._ranks:
                if rank.process is not None and rank.process.returncode is None:
                    rank.process.kill()
        return self._status

    async def _watch(self) -> None:
        """Tells which processes have ended."""
        while True:
            for rank in self._ranks:
                if rank.process is not None and rank.process.poll() is not None:
                    rank.ended.set()
            await asyncio.sleep(_LOOK_SECONDS)

    # ---- what ranks are told ---------------------------------------------------------------

    def _shared_variables(self) -> dict[str, str]:
        """Of all ranks."""
        size = len(self._ranks)
        settings = {
            name: value
            for name, value in os.environ.items()
            if name.startswith("ROPEWALK_") and name not in _OWN_NAMES
        }
        port = self._options.port or random.SystemRandom().randrange(*_PORTS)
        if self._secret is None:
            rendezvous, address = f"local:launch-{self._token}", "127.0.0.1"
        else:
            address = self._options.address or self._first_address()
            shown = f"[{address}]" if ":" in address else address
            rendezvous = f"tcp://{shown}:{port}"
        return {
            **settings,
            **self._options.variables,
            "ROPEWALK_WORLD_SIZE": str(size),
            "ROPEWALK_RENDEZVOUS": rendezvous,
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port + 1),
        }

    def _first_address(self) -> str:
        ssh = self._options.ssh
        first, second = self._hosts[:2]
        if first.is_local:
            towards = names.ssh_name(second, ssh)
            return names.own_address_towards(towards) or names.ssh_name(first, ssh)
        return names.reachable_address(names.ssh_name(first, ssh))

    def _script_of(self, rank: _Rank, shared: Mapping[str, str]) -> bytes:
        local = [each for each in self._ranks if each.host is rank.host]
        number = str(rank.number)
        own = {
            "ROPEWALK_RANK": number,
            "RANK": number,
            "LOCAL_RANK": str(rank.on_host),
            "LOCAL_WORLD_SIZE": str(len(local)),
            "GROUP_RANK": str(self._hosts.index(rank.host)),
        }
        return script(
            self._command,
            {**shared, **own},
            token=self._token,
            folder=self._options.folder or str(Path.cwd()),
            must_have_folder=self._options.folder is not None,
            secret=self._secret,
        )

    def _invocation(self, host: Host) -> list[str]:
        if host.is_local:
            return ["/bin/sh"]
        limit = max(1, round(self._options.connect_timeout))
        options = {
            "BatchMode": "yes",  # a question for a password would wait for ever
            "ConnectTimeout": limit,
            "ServerAliveInterval": 5,
            "ServerAliveCountMax": 4,
        }
        given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return [*self._options.ssh, "-T", *given, host.name, REMOTE_SHELL]

    # ---- one rank ----------------------------------------------------------------------------

    async def _run_rank(
        self, rank: _Rank, shared: Mapping[str, str], gate: asyncio.Semaphore
    ) -> None:
        async with gate:
            if self._ending is not None:
                return
            command = self._invocation(rank.host)
            try:
                process = rank.process = subprocess.Popen(
                    command,
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C of the terminal is for this process alone
                )
            except OSError as error:
                self._fail(f"{command[0]}: {error.strerror}", 255, at_once=True)
                return
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            streams = asyncio.gather(
                self._pass_on(rank, await _reader(process.stdout), sys.stdout.buffer),
                self._pass_on_errors(rank, await _reader(process.stderr)),
            )
            with contextlib.suppress(ConnectionError):
                await asyncio.get_running_loop().run_in_executor(
                    None, process.stdin.write, self._script_of(rank, shared)
                )
            await self._wait_for_begin(rank)
        await rank.ended.wait()
        with contextlib.suppress(ConnectionError):
            process.stdin.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(streams, _OUTPUT_SECONDS)
        self._ended(rank)

    async def _wait_for_begin(self, rank: _Rank) -> None:
        assert rank.process is not None
        begun = asyncio.ensure_future(rank.begun.wait())
        ended = asyncio.ensure_future(rank.ended.wait())
        done, _ = await asyncio.wait(
            (begun, ended),
            timeout=self._options.connect_timeout,
            return_when=asyncio.FIRST_COMPLETED,
        )
        begun.cancel()
        ended.cancel()
        if not done and self._ending is None:
            limit = self._options.connect_timeout
            rank.said.append(f"did not begin rank {rank.number} within {limit:g} s")
            rank.process.kill()

    def _ended(self, rank: _Rank) -> None:
        assert rank.process is not None
        raw = rank.process.returncode
        where = f"rank {rank.number} on {rank.host.name}"
        # A connection that was lost gives another status than the command.
        if rank.status is not None and rank.status == raw:
            # What this job's end did is no news.
            if rank.status - 128 in self._sent and self._status != 0:
                return
            if rank.status != 0:
                self._fail(f"{where} {_describe(rank.status)}", rank.status)
        elif not rank.begun.is_set():
            if self._ending is not None:
                return
            said = "; ".join(rank.said[-3:]) or f"ssh ended with status {raw}, and said nothing"
            self._fail(f"host {rank.host.name}: {said}", 255, at_once=True)
        elif self._ending is None:
            said = "; ".join(rank.said[-1:])
            self._fail(f"{where}: the connection was lost{': ' if said else ''}{said}", 255)

    # ---- output --------------------------------------------------------------------------------

    async def _pass_on(self, rank: _Rank, source: asyncio.StreamReader, to: BinaryIO) -> None:
        rest = b""
        while chunk := await source.read(_MOST_LINE):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._write(rank, line, to)
            if len(rest) > _MOST_LINE:
                self._write(rank, rest, to)
                rest = b""
        if rest:
            self._write(rank, rest, to)

    async def _pass_on_errors(self, rank: _Rank, source: asyncio.StreamReader) -> None:
        begin, end = begin_mark(self._token)[:-1], end_mark(self._token)
        to = sys.stderr.buffer
        rest = b""
        while True:
            chunk = await source.read(_MOST_LINE)
            *lines, rest = (rest + chunk).split(b"\n")
            if (not chunk or len(rest) > _MOST_LINE) and rest:
                lines.append(rest)
                rest = b""
            for line in lines:
                if not rank.begun.is_set():
                    if line.endswith(begin):
                        rank.said.clear()
                        rank.begun.set()
                    elif text := line.decode("utf-8", "replace").strip():
                        rank.said.append(text)
                    continue
                before, mark, status = line.partition(end)
                if mark and status.isdigit():
                    rank.status = int(status)
                if before or not mark:
                    self._write(rank, before, to)
            if not chunk:
                return

    def _write(self, rank: _Rank, line: bytes, to: BinaryIO) -> None:
        prefix = self._options.prefix(rank.number, rank.host).encode()
        try:
            to.write(prefix + line + b"\n")
            to.flush()
        except BrokenPipeError:
            # The reader (head, less) has seen enough.
            if self._ending is None:
                self._status = self._status or 128 + signal.SIGPIPE
                self._end(signal.SIGTERM)

    # ---- the end -------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            print(f"ropewalk: {text}", file=sys.stderr, flush=True)

    def _fail(self, text: str, status: int, *, at_once: bool = False) -> None:
        if self._ending is not None and self._status != 0:
            if not self._interrupts:
                self._say(text)
            return
        self._status = self._status or status
        self._say(text)
        self._end(signal.SIGTERM, after=0.0 if at_once else self._options.grace)

    def _signalled(self, number: signal.Signals) -> None:
        self._interrupts += 1
        self._status = self._status or 128 + number
        if self._interrupts > 1:
            self._say(f"{number.name} again: killing all ranks")
            self._end(signal.SIGKILL)
        else:
            self._say(f"{number.name}: passed on to all ranks; once more kills them")
            self._end(number)

    def _end(self, number: signal.Signals, after: float = 0.0) -> None:
        """Ends all ranks: `number` after so many seconds, then SIGTERM, then SIGKILL."""
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.get_running_loop().create_task(self._end_all(number, after))

    async def _end_all(self, number: signal.Signals, after: float) -> None:
        grace = self._options.grace
        steps = {
            signal.SIGTERM: [(number, after), (signal.SIGKILL, grace)],
            signal.SIGKILL: [(number, after)],
        }.get(number, [(number, after), (signal.SIGTERM, grace), (signal.SIGKILL, grace)])
        for step, delay in steps:
            await asyncio.sleep(delay)
            if step is not number and (left := self._left()):
                self._say(f"{step.name} for {_ranks(left)}")
            self._sent.add(step)
            for rank in self._ranks:
                self._send(rank, step)
        await asyncio.sleep(_AFTER_KILL_SECONDS)
        for rank in self._ranks:
            if rank.process is not None and rank.process.returncode is None:
                rank.process.kill()

    def _left(self) -> list[int]:
        return [
            rank.number
            for rank in self._ranks
            if rank.process is not None and rank.process.returncode is None
        ]

    def _send(self, rank: _Rank, number: signal.Signals) -> None:
        process = rank.process
        if process is None or process.returncode is not None or process.stdin is None:
            return
        if not rank.begun.is_set():
            process.kill()  # at the end of its input the host's shell ends by itself
            return
        with contextlib.suppress(ConnectionError):
            process.stdin.write(f"{number.name[3:]}\n".encode())


async def _reader(pipe: IO[bytes]) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return reader


def _describe(status: int) -> str:
    if status > 128:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(status - 128).name} (status {status})"
    return f"ended with status {status}"


def _ranks(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) != 1 else ''} {shown}"
