"""How the ranks of a process group find each other: by PyTorch's store, and by a launcher."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
import zlib
from collections.abc import Generator
from datetime import timedelta
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

import ropewalk
from ropewalk import joining
from ropewalk.communicator import Communicator
from ropewalk.errors import PeerLostError, UsageError
from ropewalk.torch_errors import timeout as timeout_error

_LONGEST_NAP_SECONDS = 0.02
# How long a rank whose attempt to join failed waits for a newer one to be announced.
_NEWER_SECONDS = 5.0

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def limit_of(timeout: timedelta) -> float:
    """Seconds that an operation may take: the shorter of PyTorch's `timeout` and TIMEOUT."""
    setting = next(
        row["value"] for row in ropewalk.settings.describe() if row["name"] == "ROPEWALK_TIMEOUT"
    )
    ours = sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"([\d.]+)\s*([a-z]+)", setting))
    theirs = timeout.total_seconds()
    return min(theirs, ours) if ours > 0 else theirs


class _OutdatedError(Exception):
    """Rank 0 has announced another attempt to join."""


class Meeting:
    """Ranks that join through a store, as often as they like, also after attempts that failed.

    Rank 0 announces each attempt by a new random name, under which all ranks say that they are
    there before they join. What an earlier attempt left in the store (of the same process, or of
    processes that torchrun has started anew) is passed over when rank 0 announces the next.
    """

    def __init__(self, store: Any, name: str, rank: int, size: int) -> None:
        """`name` distinguishes the groups that join through one store."""
        self._store = store
        self._key = f"ropewalk/{name}"
        self._rank, self._size = rank, size

    def join(self, seconds: float, look: Callable[[], None] = lambda: None) -> Communicator:
        """A communicator of the ranks that come within `seconds`.

        Args:
            seconds: longest time until all have come.
            look: called all the while; what it raises ends the wait.

        Raises:
            TimeoutError: a rank did not come; the text names it.
            Error: as `ropewalk.init`.
        """
        until = time.monotonic() + seconds
        attempt = ""
        if self._rank == 0:
            attempt = os.urandom(16).hex()
            self._store.set(self._key, attempt)
        while True:
            if self._rank != 0:
                attempt = self._announced(attempt, until, look)
            try:
                return self._join(attempt, until, look)
            except _OutdatedError:
                continue
            except (PeerLostError, UsageError):
                # Of an attempt whose rank 0 has ended?
                if self._rank == 0 or not self._outdated_soon(attempt, until):
                    raise

    def _announced(self, old: str, until: float, look: Callable[[], None]) -> str:
        for _ in _turns(until, look):
            announced = self._read()
            if announced not in ("", old):
                return announced
        raise timeout_error(f"rank 0 did not come: it put nothing under {self._key} into the store")

    def _outdated_soon(self, attempt: str, until: float) -> bool:
        until = min(until, time.monotonic() + _NEWER_SECONDS)
        return any(self._is_outdated(attempt) for _ in _turns(until, lambda: None))

    def _is_outdated(self, attempt: str) -> bool:
        return self._rank != 0 and self._read() not in ("", attempt)

    def _read(self) -> str:
        """The announced attempt; empty for none."""
        if not self._store.check([self._key]):
            return ""
        announced: str = self._store.get(self._key).decode()
        return announced

    def _announce(self, attempt: str) -> None:
        """By rank 0, as long as it waits.

        What a process sent to the store before it was killed may arrive after this: it announces
        an attempt that is over, or takes the announcement back.
        """
        if self._rank == 0 and self._read() != attempt:
            self._store.set(self._key, attempt)

    def _join(self, attempt: str, until: float, look: Callable[[], None]) -> Communicator:
        prefix = f"{self._key}/{attempt}"
        self._store.set(f"{prefix}/{self._rank}", "here")
        if self._store.add(f"{prefix}/came", 1) == self._size:
            self._store.set(f"{prefix}/all", "here")
        if not self._await(attempt, f"{prefix}/all", until, look):
            away = [
                str(rank)
                for rank in range(self._size)
                if not self._store.check([f"{prefix}/{rank}"])
            ]
            ranks = "rank" if len(away) == 1 else "ranks"
            raise timeout_error(f"{ranks} {' '.join(away)} did not come to join within the timeout")
        # Made now: the service of an id that nobody uses would stay for long.
        if self._rank == 0:
            unique_id = ropewalk.unique_id()
            self._store.set(f"{prefix}/id", unique_id.hex())
        elif self._await(attempt, f"{prefix}/id", until, look):
            unique_id = bytes.fromhex(self._store.get(f"{prefix}/id").decode())
        else:
            raise timeout_error("rank 0 did not go on joining within the timeout")
        comm = ropewalk.init(unique_id=unique_id, rank=self._rank, size=self._size)
        if self._rank == 0:
            with contextlib.suppress(RuntimeError):  # a store that cannot delete
                self._store.delete_key(self._key)
        return comm

    def _await(self, attempt: str, key: str, until: float, look: Callable[[], None]) -> bool:
        for _ in _turns(until, look):
            if self._store.check([key]):
                return True
            if self._is_outdated(attempt):
                raise _OutdatedError
            self._announce(attempt)
        return False


def _turns(until: float, look: Callable[[], None]) -> Generator[None, None, None]:
    """Polling times: at once, then at growing intervals, up to `until`."""
    # Store.get would hold a lock of the store meanwhile, and with it other threads' set.
    nap = 0.0005
    while True:
        yield
        look()
        if time.monotonic() > until:
            return
        time.sleep(nap)
        nap = min(1.5 * nap, _LONGEST_NAP_SECONDS)


# ---- launchers


def rendezvous(url: str, **_options: Any) -> Generator[tuple[Any, int, int], None, None]:
    """init_method="ropewalk://": rank and size are the launcher's, as `ropewalk.init` finds them.

    So a program runs under mpirun and srun as under torchrun. Rank 0 has the store.
    """
    comm = ropewalk.init()
    address = torch.zeros(256, dtype=torch.uint8)
    store: Any = None
    if comm.rank == 0:
        host = url[len("ropewalk://") :] or _own_name()
        store = dist.TCPStore(host, 0, comm.size, is_master=True, wait_for_workers=False)
        text = f"{host} {store.port}".encode()
        address[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
    comm.broadcast(address)
    if store is None:
        host, port = bytes(address.tolist()).rstrip(b"\0").decode().split()
        store = dist.TCPStore(host, int(port), comm.size, is_master=False)
    yield store, comm.rank, comm.size
    raise RuntimeError("ropewalk:// cannot start ranks again")


def _own_name() -> str:
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:  # no name that others could know either
        return "127.0.0.1"
    return socket.gethostname()


# ---- GPUs


def own_gpu(rank: int) -> int:
    """The GPU of this process, -1 without one."""
    if not torch.cuda.is_available() or ropewalk.device_count() == 0:
        return -1
    if torch.cuda.is_initialized() and torch.cuda.current_device() != 0:
        return int(torch.cuda.current_device())  # the program has chosen
    return joining.device_number("cuda", dist.get_rank() if dist.is_initialized() else rank)


def attach(comm: Communicator) -> tuple[Optional[Communicator], str]:
    """A communicator of the same ranks with GPUs, or why there is none."""
    mine = own_gpu(comm.rank)
    gpus = torch.zeros(comm.size, 2, dtype=torch.int64)
    gpus[comm.rank, 0] = mine
    gpus[comm.rank, 1] = zlib.crc32(socket.gethostname().encode())
    comm.all_gather(gpus)
    without = (gpus[:, 0] < 0).nonzero().flatten().tolist()
    if without:
        reason = ropewalk.why_no_device() or "PyTorch has no CUDA"
        return None, f"rank {without[0]} has no GPU" + (f": {reason}" if mine < 0 else "")
    if len(gpus.unique(dim=0)) < comm.size:
        return None, "two ranks of the group share a GPU"
    gpu = comm.split(0, comm.rank)
    assert gpu is not None
    try:
        gpu.attach(mine)
    except UsageError as error:
        return None, str(error)
    return gpu, ""
