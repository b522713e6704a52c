"""Hosts as network namespaces on a wire with a rate and a delay: a program stands for the wire.

Kernels without sch_netem cannot delay packets. Each host has a TAP interface; this program reads
its frames, lets them wait until a link of that rate would have sent them and for the delay after
that, and writes them to the host that they are for. Needs root and /dev/net/tun.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import fcntl
import multiprocessing
import os
import select
import struct
import subprocess
import time
from typing import Any

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_MTU = 9000
# Frames of a host that wait for the wire; further ones are dropped, as by a switch.
_QUEUE_SECONDS = 0.1


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def enter(namespace: str) -> None:
    """The calling process is on that host from now on, with the threads that it starts later."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", "rb") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns({namespace})")


class DelayedWire:
    """`hosts` namespaces, `names`; removed at the end of the `with`."""

    def __init__(self, hosts: int, rate: float, delay: float) -> None:
        """`rate`: bytes per second of a host, each way; `delay`: seconds, one way."""
        self.names = [f"rwc{os.getpid()}h{h}" for h in range(hosts)]
        self._shape = (rate, delay)

    def __enter__(self) -> DelayedWire:
        try:
            for name in self.names:
                _run("ip", "netns", "add", name)
                _run("ip", "-n", name, "link", "set", "lo", "up")
            ours, theirs = multiprocessing.Pipe()
            context = multiprocessing.get_context("spawn")
            arguments = (self.names, *self._shape, theirs)
            self._wire = context.Process(target=_relay, args=arguments, daemon=True)
            self._wire.start()
            self._pipe = ours
            if not ours.poll(20) or ours.recv() != "ready":
                raise RuntimeError("the wire did not start")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "_wire"):
            self._wire.kill()
            self._wire.join()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


def _make_tap(namespace: str, host: int) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = f"rwc{host}p{os.getppid()}"
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    _run("ip", "link", "set", name, "netns", namespace, "mtu", str(_MTU), "txqueuelen", "10000")
    # Each host is an address of this prefix; frames say by it where they go.
    mac = f"02:00:00:00:00:{host:02x}"
    _run("ip", "-n", namespace, "link", "set", name, "address", mac)
    _run("ip", "-n", namespace, "addr", "add", f"10.233.0.{host + 1}/24", "dev", name)
    _run("ip", "-n", namespace, "link", "set", name, "up")
    return tap


def _relay(names: list[str], rate: float, delay: float, pipe: Any) -> None:
    taps = [_make_tap(name, host) for host, name in enumerate(names)]
    pipe.send("ready")
    # By host that sends: frames and when they arrive; and when its side of the wire is free.
    under_way: list[collections.deque[tuple[float, int, bytes]]] = [
        collections.deque() for _ in taps
    ]
    free = [0.0] * len(taps)
    while True:
        now = time.monotonic()
        for queue in under_way:
            while queue and queue[0][0] <= now:
                _, to, frame = queue.popleft()
                for other, tap in enumerate(taps):
                    if other == to or to == len(taps):
                        # A host that is gone, or that cannot take more, loses the frame.
                        with contextlib.suppress(OSError):
                            os.write(tap, frame)
        due = min((queue[0][0] for queue in under_way if queue), default=now + 1)
        ready, _, _ = select.select(taps, [], [], max(0.0, due - time.monotonic()))
        now = time.monotonic()
        for tap in ready:
            source = taps.index(tap)
            with contextlib.suppress(BlockingIOError):
                for _ in range(64):
                    frame = os.read(tap, _MTU + 64)
                    if free[source] > now + _QUEUE_SECONDS:
                        continue
                    free[source] = max(free[source], now) + len(frame) / rate
                    host = frame[5] if frame[:5] == b"\x02\0\0\0\0" else len(taps)
                    under_way[source].append((free[source] + delay, host, frame))
