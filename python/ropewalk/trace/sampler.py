"""Samples the load of one host: processors, memory, network interfaces, RDMA ports, GPUs.

A program of its own, of the standard library alone, so that it can be sent to any host with Python
3.9 through standard input. It prints lines of JSON: first what the host has, then a sample each
period. A line "clock" on standard input is answered with this host's clocks; at its end the program
ends.

Usage: sampler.py SECONDS [ROOT]   (ROOT: a folder instead of / for /proc and /sys, for tests)

Sources: Linux's /proc/stat, /proc/meminfo, /proc/net/dev; the counters of
/sys/class/infiniband/*/ports/*/counters, which count words of 4 bytes (InfiniBand's PortCounters;
Omni-Path and RoCE too); NVML, found at run time (variable RW_NVML names another library).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Optional

_Counters = dict[tuple[str, str], tuple[int, ...]]

# Fields of nvmlDeviceGetFieldValues (nvml.h): over all NVLinks of a GPU, KiB; and bytes over PCIe.
_NVLINK_TX, _NVLINK_RX, _PCIE_TX, _PCIE_RX = 138, 139, 197, 198
_ALL_LINKS = 0xFFFFFFFF


class _Field(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_int),
        ("result", ctypes.c_int),
        ("value", ctypes.c_ubyte * 8),
    ]

    def number(self) -> Any:
        """Its value; None where there is none."""
        kinds: tuple[Any, ...] = (
            ctypes.c_double, ctypes.c_uint, ctypes.c_ulong, ctypes.c_ulonglong, ctypes.c_longlong,
            ctypes.c_int,
        )  # fmt: skip
        if self.result != 0 or not 0 <= self.type < len(kinds):
            return None
        return kinds[self.type].from_buffer_copy(bytes(self.value)).value


class Sparing:
    """When something may be done again that costs processor time: it gets SHARE of one core."""

    SHARE = 0.004

    def __init__(self) -> None:
        """At once."""
        self._due_ns = 0

    def due(self, now_ns: int) -> bool:
        """Whether it may be done now, on the clock `time.monotonic_ns`."""
        return now_ns >= self._due_ns

    def took(self, now_ns: int, seconds: float) -> None:
        """It was begun at `now_ns`, and took `seconds` of a processor."""
        self._due_ns = now_ns + round(1e9 * seconds / self.SHARE)


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Gpus:
    """NVIDIA's, by NVML; none where there is no NVML."""

    def __init__(self, library: str) -> None:
        self.names: list[str] = []
        self.memories: list[int] = []
        self.note: Optional[str] = None
        self._handles: list[ctypes.c_void_p] = []
        # Of drivers without counters: bytes per second, by GPU and direction.
        self._pcie: dict[tuple[int, int], int] = {}
        # Counters at their last reading, and when that was, by kind of link and GPU. Reading those
        # of NVLink takes over a millisecond for an H100 (18 links): not every sample has them.
        self._counted: dict[tuple[str, int], tuple[int, tuple[int, int]]] = {}
        self._sparing = Sparing()
        try:
            self._nvml = ctypes.CDLL(library)
            if self._nvml.nvmlInit_v2() != 0:
                self.note = "NVML: nvmlInit failed"
                return
        except (OSError, AttributeError):
            return
        count = ctypes.c_uint()
        self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
                continue
            name = ctypes.create_string_buffer(96)
            self._nvml.nvmlDeviceGetName(handle, name, 96)
            self._handles.append(handle)
            self.names.append(name.value.decode("utf-8", "replace"))
            memory = _Memory()
            self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
            self.memories.append(memory.total)
        if self._handles and self._fields(self._handles[0]).get(_PCIE_TX) is None:
            threading.Thread(target=self._measure_pcie, daemon=True).start()

    def _measure_pcie(self) -> None:
        # Each call takes 20 ms, in which it measures (and 0.7 ms of a processor): not in the
        # sampling thread.
        value = ctypes.c_uint()
        turns = Sparing()
        while True:
            began_ns, began = time.monotonic_ns(), time.thread_time()
            for index, handle in enumerate(self._handles):
                for direction in (0, 1):  # sent, received
                    try:
                        result = self._nvml.nvmlDeviceGetPcieThroughput(
                            handle, direction, ctypes.byref(value)
                        )
                    except AttributeError:
                        return
                    if result == 0:
                        self._pcie[index, direction] = value.value * 1024
            turns.took(began_ns, time.thread_time() - began)
            time.sleep(0.05)
            while not turns.due(time.monotonic_ns()):
                time.sleep(0.05)

    def _fields(self, handle: ctypes.c_void_p) -> dict[int, Any]:
        wanted = (_NVLINK_TX, _NVLINK_RX, _PCIE_TX, _PCIE_RX)
        fields = (_Field * len(wanted))()
        for field, number in zip(fields, wanted):
            field.id = number
            field.scope = _ALL_LINKS if number in (_NVLINK_TX, _NVLINK_RX) else 0
            field.result = 999
        try:
            if self._nvml.nvmlDeviceGetFieldValues(handle, len(wanted), fields) != 0:
                return {}
        except AttributeError:
            return {}
        return {field.id: field.number() for field in fields}

    def read(self, now_ns: int) -> list[dict[str, Any]]:
        """Values of each GPU, and where it is their turn its links' bytes per second."""
        links = self._sparing.due(now_ns)
        began = time.thread_time()
        found = []
        for index, handle in enumerate(self._handles):
            values: dict[str, Any] = {}
            utilization, memory = _Utilization(), _Memory()
            if self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(utilization)) == 0:
                values["busy"] = utilization.gpu / 100
            if self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
                values["memory"] = memory.used
            if links:
                values.update(self._rates(index, self._fields(handle), now_ns))
            if (index, 0) in self._pcie and (index, 1) in self._pcie:
                values["pcie"] = [self._pcie[index, 0], self._pcie[index, 1]]
            found.append(values)
        if links:
            self._sparing.took(now_ns, time.thread_time() - began)
        return found

    def _rates(self, index: int, fields: dict[int, Any], now_ns: int) -> dict[str, list[int]]:
        rates = {}
        for kind, sent, received, unit in (
            ("nvlink", _NVLINK_TX, _NVLINK_RX, 1024),
            ("pcie", _PCIE_TX, _PCIE_RX, 1),
        ):
            if fields.get(sent) is None or fields.get(received) is None:
                continue
            now = (fields[sent] * unit, fields[received] * unit)
            then_ns, then = self._counted.get((kind, index), (now_ns, now))
            self._counted[kind, index] = now_ns, now
            # A counter that goes back was reset: nothing is known.
            if now_ns > then_ns and now[0] >= then[0] and now[1] >= then[1]:
                seconds = (now_ns - then_ns) / 1e9
                rates[kind] = [round((b - a) / seconds) for a, b in zip(then, now)]
        return rates


class _File:
    """A file of the kernel's, open once and read from its beginning each time."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, most: int = 1 << 16) -> bytes:
        """Its first bytes."""
        return os.pread(self._descriptor, most, 0)


def _clocks() -> tuple[int, int]:
    """CLOCK_MONOTONIC and CLOCK_REALTIME at one moment, also where a process often has to wait."""
    shortest = None
    for _ in range(3):
        before, real, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if shortest is None or after - before < shortest[0]:
            shortest = after - before, (before + (after - before) // 2, real)
        if shortest[0] < 20_000:
            break
    assert shortest is not None
    return shortest[1]


class Host:
    """What can be sampled here, and the counters as they were at the last sample."""

    def __init__(self, root: str = "/") -> None:
        proc = Path(root, "proc")
        self._stat = _File(proc / "stat")
        self._memory = _File(proc / "meminfo")
        self._interfaces = _File(proc / "net/dev")
        self._ports: dict[str, tuple[_File, ...]] = {}
        for folder in sorted(Path(root, "sys").glob("class/infiniband/*/ports/*/counters")):
            with contextlib.suppress(OSError):  # a port without them
                self._ports[f"{folder.parts[-4]}/{folder.parts[-2]}"] = tuple(
                    _File(folder / name) for name in ("port_xmit_data", "port_rcv_data")
                )
        self.gpus = Gpus(os.environ.get("RW_NVML", "libnvidia-ml.so.1"))
        self._before = self._read()

    def describe(self) -> dict[str, Any]:
        """The first line."""
        text = self._memory.read().decode()
        total = next((line.split()[1] for line in text.splitlines() if "MemTotal" in line), "0")
        return {
            "host": socket.gethostname().partition(".")[0],
            "cpus": os.cpu_count(),
            "memory": int(total) * 1024,
            "rdma": sorted(self._ports),
            "gpus": self.gpus.names,
            "gpu_memories": self.gpus.memories,
            "notes": [self.gpus.note] if self.gpus.note else [],
        }

    def _read(self) -> tuple[tuple[int, int], list[int], _Counters, list[dict[str, Any]]]:
        clocks = _clocks()
        cpu = [int(word) for word in self._stat.read(4096).split(b"\n", 1)[0].split()[1:9]]
        counters: _Counters = {}
        for line in self._interfaces.read().decode().splitlines()[2:]:
            name, _, rest = line.partition(":")
            words = rest.split()
            if len(words) >= 9:
                counters["net", name.strip()] = (int(words[8]), int(words[0]))
        for name, files in self._ports.items():
            with contextlib.suppress(OSError, ValueError):  # a port that is gone
                counters["rdma", name] = tuple(4 * int(file.read(64)) for file in files)
        return clocks, cpu, counters, self.gpus.read(clocks[0])

    def sample(self) -> dict[str, Any]:
        """What happened since the last sample."""
        (before_ns, _), cpu_before, before, _ = self._before
        self._before = (now_ns, real_ns), cpu, counters, gpus = self._read()
        seconds = max(1e-9, (now_ns - before_ns) / 1e9)

        def rates(kind: str, name: str) -> Optional[list[int]]:
            then, now = before.get((kind, name)), counters.get((kind, name))
            # A counter that goes back was reset: nothing is known.
            if then is None or now is None or now[0] < then[0] or now[1] < then[1]:
                return None
            return [round((b - a) / seconds) for a, b in zip(then, now)]

        spent = [b - a for a, b in zip(cpu_before, cpu)]
        idle, total = spent[3] + spent[4], sum(spent)
        memory = {}
        for each in self._memory.read().splitlines()[:3]:
            words = each.split()
            memory[words[0]] = int(words[1]) * 1024
        line: dict[str, Any] = {
            "t": now_ns,
            "r": real_ns,
            "cpu": round(1 - idle / total, 4) if total > 0 else None,
            "mem": memory.get(b"MemTotal:", 0) - memory.get(b"MemAvailable:", 0),
        }
        for kind in ("net", "rdma"):
            found = {name: rates(kind, name) for k, name in counters if k == kind}
            line[kind] = {name: pair for name, pair in found.items() if pair is not None}
        line["gpu"] = gpus
        line["own"] = round(time.process_time(), 4)
        return line


def main() -> None:
    """See the top."""
    period = float(sys.argv[1])
    host = Host(*sys.argv[2:3])

    def say(line: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
        sys.stdout.flush()

    say(host.describe())
    os.set_blocking(0, False)
    due = time.monotonic() + period
    asked = b""
    while True:
        left = due - time.monotonic()
        if left <= 0:
            say(host.sample())
            # After a pause (a stopped process) the missed samples are not made up for.
            due = max(due + period, time.monotonic() + period / 2)
            continue
        if select.select([0], [], [], left)[0]:
            part = os.read(0, 4096)
            if not part:
                return
            asked += part
            while b"\n" in asked:
                _, _, asked = asked.partition(b"\n")
                say({"clock": _clocks()})


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing more to say at exit
