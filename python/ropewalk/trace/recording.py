"""The files of a trace, written as samples come: Chrome's trace events, and CSV.

A file that cannot be written any more (a full disk) is cut after its last whole event and closed,
and the trace ends there: what is traced is not disturbed.
"""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Optional

from ropewalk.trace.series import Series
from ropewalk.trace.source import Sample, Source

# Processes of the trace: ranks have their numbers, hosts come after them.
HOST_PROCESS: Final = 1_000_000
# CLOCK_REALTIME gains or loses a little on CLOCK_MONOTONIC while it is corrected.
_JUMP_NS: Final = 50_000_000

Quantity = tuple[str, str, str]
"""device ("" for the host), quantity, unit"""


class File:
    """One that is only appended to."""

    def __init__(self, path: Path, head: str, tail: str = "") -> None:
        """Raises OSError when it cannot be made."""
        self.path = path
        self.error: Optional[OSError] = None
        self._file = path.open("wb", buffering=0)
        self._tail = tail.encode()
        self._whole = 0
        self.write(head)

    def write(self, text: str) -> None:
        """All of it or nothing; after an error nothing."""
        if self.error is not None:
            return
        raw = text.encode()
        try:
            while raw:
                raw = raw[self._file.write(raw) :]
            self._whole += len(text.encode())
        except OSError as error:
            self.error = error

    def close(self) -> None:
        """Ends the document."""
        try:
            if self.error is not None:
                os.ftruncate(self._file.fileno(), self._whole)
                self._file.seek(self._whole)
            self._file.write(self._tail)
        except OSError as error:
            self.error = self.error or error
        finally:
            self._file.close()


class Recording:
    """What the samplers tell. Any thread."""

    def __init__(self, trace: Path, csv_file: Optional[Path], start_ns: int, real_ns: int) -> None:
        """Raises OSError when a file cannot be made.

        Args:
            trace: of Chrome's events.
            csv_file: of the samples as a table.
            start_ns: CLOCK_MONOTONIC at the trace's time 0.
            real_ns: CLOCK_REALTIME then.
        """
        head = json.dumps(
            {"displayTimeUnit": "ms", "baseTimeNanoseconds": real_ns, "traceEvents": []}
        ).removesuffix("]}")
        self._start_ns = start_ns
        self._lock = threading.Lock()
        self._trace = File(trace, head, "\n]}\n")
        self._csv = (
            None
            if csv_file is None
            else File(csv_file, "seconds,host,device,quantity,value,unit\n")
        )
        self._comma = ""
        self._numbers: dict[Source, int] = {}
        self._names: dict[Source, str] = {}
        self._clock: dict[str, tuple[int, int]] = {}
        self.series: dict[str, dict[Quantity, Series]] = {}
        """of each host"""
        self.descriptions: dict[str, dict[str, Any]] = {}
        self.jumps: list[tuple[str, float, float]] = []
        """host, seconds of the trace, by how much its clock was set"""
        self.alike: list[tuple[str, str]] = []
        """a host's own name, of which there are several, and what a further one is called here"""
        self.samples = 0
        self._own: dict[str, list[tuple[float, float]]] = {}

    @property
    def error(self) -> Optional[tuple[Path, OSError]]:
        """Which file could not be written, and why."""
        for file in (self._trace, self._csv):
            if file is not None and file.error is not None:
                return file.path, file.error
        return None

    def costs(self) -> list[float]:
        """Of each host's sampler: the share of a core that it took, without its start."""
        return [
            (last[1] - first[1]) / (last[0] - first[0])
            for first, last in self._own.values()
            if last[0] > first[0]
        ]

    def averages(self, host: str) -> dict[str, float]:
        """Over the samples: processors, memory, GPUs, their memory; parts of what is there."""
        description = self.descriptions[host]
        found: dict[str, float] = {}
        gpu_memory = []
        gpus = []
        for (device, what, _), series in self.series[host].items():
            if not series.values:
                continue
            mean = sum(series.values) / len(series.values)
            if what == "cpu":
                found["processors"] = mean
            elif what == "memory" and description["memory"]:
                found["memory"] = mean / description["memory"]
            elif what == "gpu":
                gpus.append(mean)
            elif what == "gpu_memory":
                total = description["gpu_memories"][int(device.rpartition(" ")[2])]
                gpu_memory.append(mean / total if total else 0.0)
        if gpus:
            found["GPUs"] = sum(gpus) / len(gpus)
        if gpu_memory:
            found["GPU memory"] = sum(gpu_memory) / len(gpu_memory)
        return found

    def describe(self, source: Source) -> None:
        """A host has told what it has."""
        assert source.description is not None
        with self._lock:
            number = self._numbers.setdefault(source, len(self._numbers))
            pid = HOST_PROCESS + number
            if source not in self._names:
                self._names[source] = self._name(source)
            name = self._names[source]
            self.descriptions[name] = source.description
            self.series.setdefault(name, {})
            self._events(
                [
                    {
                        "ph": "M",
                        "name": "process_name",
                        "pid": pid,
                        "args": {"name": f"host {name}"},
                    },
                    {
                        "ph": "M",
                        "name": "process_sort_index",
                        "pid": pid,
                        "args": {"sort_index": number - 1000},
                    },
                ]
            )

    def _name(self, source: Source) -> str:
        # As it calls itself, if it is the only one that does.
        name = source.name
        if name in self.descriptions:
            name = f"{name} ({source.host.name})"
        if name in self.descriptions:
            name = f"{name} {len(self._names)}"
        if name != source.name:
            self.alike.append((source.name, name))
        return name

    def add(self, source: Source, sample: Sample) -> None:
        """A sample."""
        with self._lock:
            at_ns = int(sample["t"]) + source.offset_ns - self._start_ns
            seconds = at_ns / 1e9
            name = self._names[source]
            self._note_jump(name, seconds, int(sample["r"]) - int(sample["t"]), source.offset_ns)
            self.samples += 1
            own = (seconds, float(sample["own"]))
            self._own[name] = [self._own.get(name, [own])[0], own]
            pid = HOST_PROCESS + self._numbers[source]
            events, rows = [], []
            for (title, arguments), quantities in _quantities(sample):
                events.append(
                    {"ph": "C", "name": title, "pid": pid, "ts": at_ns / 1000, "args": arguments}
                )
                for quantity, value in quantities:
                    self.series[name].setdefault(quantity, Series()).add(seconds, value)
                    device, what, unit = quantity
                    rows.append((f"{seconds:.6f}", name, device, what, f"{value:.6g}", unit))
            self._events(events)
            if self._csv is not None:
                text = io.StringIO()
                csv.writer(text, lineterminator="\n").writerows(rows)
                self._csv.write(text.getvalue())

    def add_events(self, events: Iterable[dict[str, Any]]) -> None:
        """Others' events."""
        with self._lock:
            batch: list[dict[str, Any]] = []
            for event in events:
                batch.append(event)
                if len(batch) == 1000:
                    self._events(batch)
                    batch = []
            self._events(batch)

    def at(self, host: str, real_ns: int) -> float:
        """Nanoseconds of the trace when the clock of `host` showed `real_ns` (CLOCK_REALTIME).

        By what the clock showed at the last sample: such times are told at the end.
        """
        _, last = self._clock.get(host, next(iter(self._clock.values()), (0, 0)))
        return real_ns - last - self._start_ns

    def close(self) -> None:
        """Ends the files."""
        with self._lock:
            self._trace.close()
            if self._csv is not None:
                self._csv.close()

    def _note_jump(self, host: str, seconds: float, real_less_mono: int, offset: int) -> None:
        # Of CLOCK_REALTIME there over CLOCK_MONOTONIC here.
        now = real_less_mono - offset
        first, last = self._clock.get(host, (now, now))
        if abs(now - last) > _JUMP_NS:
            self.jumps.append((host, seconds, (now - last) / 1e9))
        self._clock[host] = (first, now)

    def _events(self, events: list[dict[str, Any]]) -> None:
        if not events:
            return
        text = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
        self._trace.write(self._comma + "\n" + text)
        self._comma = ","


_Shown = tuple[tuple[str, dict[str, float]], list[tuple[Quantity, float]]]


def _quantities(sample: Sample) -> Iterable[_Shown]:
    """Each counter of the trace with its arguments, and the values that it shows."""
    if sample["cpu"] is not None:
        yield ("CPU (%)", {"busy": 100 * sample["cpu"]}), [(("", "cpu", "fraction"), sample["cpu"])]
    yield ("memory (MB)", {"used": sample["mem"] / 1e6}), [(("", "memory", "B"), sample["mem"])]
    pairs = [(kind, name, pair) for kind in ("net", "rdma") for name, pair in sample[kind].items()]
    for index, gpu in enumerate(sample["gpu"]):
        name = f"GPU {index}"
        if "busy" in gpu:
            yield (
                (f"{name} (%)", {"busy": 100 * gpu["busy"]}),
                [((name, "gpu", "fraction"), gpu["busy"])],
            )
        if "memory" in gpu:
            yield (
                (f"{name} memory (MB)", {"used": gpu["memory"] / 1e6}),
                [((name, "gpu_memory", "B"), gpu["memory"])],
            )
        pairs += [(kind, name, gpu[kind]) for kind in ("nvlink", "pcie") if kind in gpu]
    for kind, name, (sent, received) in pairs:
        title = {"net": "", "rdma": "", "nvlink": " NVLink", "pcie": " PCIe"}[kind]
        yield (
            (f"{name}{title} (MB/s)", {"sent": sent / 1e6, "received": received / 1e6}),
            [
                ((name, f"{kind}_sent", "B/s"), sent),
                ((name, f"{kind}_received", "B/s"), received),
            ],
        )
