"""Tries every path of this machine that collectives need.

Each path is tried by moving data over it, in a process that is ended when it hangs. What cannot be
tried has failed; only what is not there is skipped.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final, Optional

from ropewalk import errors
from ropewalk.topology import Link, Node, Topology, discover

KINDS: Final = ("shared-memory", "interfaces", "rdma", "sisci", "fabrics", "gpus")
FAILED: Final = "failed"

_CHILD: Final = (sys.executable, "-m", "ropewalk.probe_child")
_FAST_TYPES: Final = ("nvlink", "xgmi", "c2c")


@dataclass(frozen=True)
class Check:
    """One thing that was tried."""

    what: str
    outcome: str
    """passed, degraded (it works, but slower than it could), failed, skipped (nothing is there)"""
    found: str = ""
    cause: str = ""
    """the likely reason, and what to do"""
    gbps: Optional[float] = None
    """10^9 bytes a second"""
    latency_us: Optional[float] = None
    expected_gbps: Optional[float] = None
    """what the link should give, where that is known"""


@dataclass(frozen=True)
class PathReport:
    """All checks of one path."""

    path: str
    """its kind: shared-memory, interface, rails, rdma, sisci, psm2, ofi, gpu, gpu-pair"""
    title: str
    checks: list[Check]


@dataclass(frozen=True)
class _Probe:
    title: str
    request: dict[str, Any]
    # Of the expected rate of a check, by its words' beginning.
    expected: dict[str, float] = field(default_factory=dict)


class _Child:
    """A process that tries the probes that are left."""

    def __init__(self, requests: Sequence[dict[str, Any]]) -> None:
        # A file: a pipe that nobody reads would stop a child that logs much.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            _CHILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(requests).encode())
        self._process.stdin.close()
        self._buffer = b""

    def answer(self, seconds: float) -> dict[str, Any]:
        """The next answer; {"error"} and {"cause"} when it crashes or hangs instead."""
        output = self._process.stdout
        assert output is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([output], [], [], left)[0]:
                return {
                    "error": f"it hung: no answer in {seconds:g} s",
                    "cause": "a driver or a device does not answer; see dmesg",
                }
            chunk = output.read1(1 << 16)  # type: ignore[attr-defined]
            if not chunk:
                return self._crash()
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _crash(self) -> dict[str, Any]:
        status = self._process.wait()
        words = self._logged().strip().splitlines()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        last = f": {words[-1]}" if words else ""
        return {"error": f"the process ended with {how}{last}", "cause": "see dmesg"}

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if os.environ.get("ROPEWALK_DEBUG", "") in ("WARN", "INFO", "TRACE"):
            sys.stderr.write(self._logged())
        self._log.close()

    def _logged(self) -> str:
        """Its standard error so far."""
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")


def _answers(requests: list[dict[str, Any]], seconds: float) -> Iterator[dict[str, Any]]:
    """The answer to each request; a new process goes on behind one that crashed or hung."""
    done = 0
    while done < len(requests):
        child = _Child(requests[done:])
        try:
            while done < len(requests):
                answer = child.answer(seconds)
                done += 1
                yield answer
                if "cause" in answer:
                    break
        finally:
            child.close()


def _checks(answer: dict[str, Any]) -> list[Check]:
    if "error" in answer:
        return [Check("the check itself", FAILED, answer["error"], answer.get("cause", ""))]
    return [Check(**each) for each in answer["checks"]]


def _rate(link: Link) -> float:
    return link.effective or link.capacity


def _widest(links: list[Link], source: str, target: str) -> Optional[float]:
    """The narrowest link of the widest path between two nodes."""
    best = {source: float("inf")}
    left = {source}
    while left:
        here = max(left, key=lambda node: best[node])
        left.remove(here)
        if here == target:
            return best[here]
        for link in links:
            if link.src == here:
                width = min(best[here], _rate(link))
                if width > best.get(link.dst, 0):
                    best[link.dst] = width
                    left.add(link.dst)
    return None


def pair_gbps(topology: Topology, first: str, second: str) -> Optional[float]:
    """Rate that one GPU should reach to another, by their links; None: unknown."""
    rates: dict[tuple[str, str], float] = {}
    for link in topology.links:
        if link.type in _FAST_TYPES and not link.assumed:
            ends = (link.src, link.dst)
            rates[ends] = rates.get(ends, 0) + _rate(link)
    switches = {node.id for node in topology.nodes if node.kind == "nvswitch"}
    total = rates.get((first, second), 0) + sum(
        min(rates.get((first, switch), 0), rates.get((switch, second), 0)) for switch in switches
    )
    return total or None


def host_gbps(topology: Topology, gpu: str) -> Optional[float]:
    """Rate that a GPU should reach to the memory of its host; None: unknown."""
    cpus = [node.id for node in topology.nodes if node.kind == "cpu"]
    if any(link.assumed for link in topology.links if gpu in (link.src, link.dst)):
        return None
    # Not by NVLink: it leads to other GPUs, whose PCIe links are not for this one.
    links = [link for link in topology.links if link.type in ("pcie", "c2c")]
    widths = [_widest(links, gpu, cpu) for cpu in cpus]
    return max((width for width in widths if width is not None), default=None)


def _bus(address: str) -> str:
    """A PCI address as sysfs writes it: NVIDIA's tools write more digits for the domain."""
    domain, _, rest = address.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest else address.lower()


def _graph() -> Optional[Topology]:
    try:
        return discover()
    except errors.Error:
        return None


def _gpu_probes(listed: dict[str, Any]) -> list[_Probe]:
    gpus = listed["gpus"]
    graph = _graph()
    by_bus: dict[str, Node] = {}
    if graph is not None:
        by_bus = {_bus(node.bus_id): node for node in graph.gpus if node.bus_id}
    nodes = [by_bus.get(_bus(gpu["bus_id"])) for gpu in gpus]
    probes = []
    for gpu, node in zip(gpus, nodes):
        expected = {}
        if graph is not None and node is not None:
            gbps = host_gbps(graph, node.id)
            if gbps is not None:
                expected = {"host to GPU": gbps, "GPU to host": gbps}
        title = f"GPU {gpu['device']} ({gpu['name']}, {gpu['bus_id']}) and host"
        probes.append(_Probe(title, {"path": "gpu", "devices": [gpu["device"]]}, expected))
    for (first, one), (second, other) in combinations(zip(gpus, nodes), 2):
        expected = {}
        if graph is not None and one is not None and other is not None:
            gbps = pair_gbps(graph, one.id, other.id)
            if gbps is not None:
                expected = {"copy from": gbps}
        pair = [first["device"], second["device"]]
        title = f"GPU {pair[0]} and GPU {pair[1]}"
        probes.append(_Probe(title, {"path": "gpu-pair", "devices": pair}, expected))
    return probes


def nvidia_gpus(root: Path = Path("/")) -> int:
    """GPUs that the system has, whether or not CUDA can use them."""
    count = 0
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor = (device / "vendor").read_text().strip()
            kind = (device / "class").read_text().strip()
        except OSError:
            continue
        count += vendor == "0x10de" and kind.startswith(("0x0302", "0x0300"))
    return count


def _no_gpus(reason: str) -> PathReport:
    there = nvidia_gpus()
    if there == 0:
        return PathReport("gpu", "GPUs", [Check("GPUs", "skipped", "none")])
    cause = "the driver is not loaded, or this container was started without GPUs"
    check = Check("GPUs", FAILED, f"{there} on the PCI bus, none that can be used: {reason}", cause)
    return PathReport("gpu", "GPUs", [check])


def _judged(check: Check, expected: dict[str, float], share: float) -> Check:
    """The check with what its link should give; too little is a failure."""
    rates = [gbps for words, gbps in expected.items() if check.what.startswith(words)]
    if not rates or check.gbps is None:
        return check
    judged = replace(check, expected_gbps=rates[0])
    if check.outcome != "passed" or check.gbps >= share * rates[0]:
        return judged
    return replace(
        judged,
        outcome=FAILED,
        found=f"{check.found}, but at {check.gbps / rates[0]:.0%} of what the link should give",
        cause="the link runs with fewer lanes or an older generation than it could (nvidia-smi -q, "
        "lspci -vv), data takes another path, or something else uses it",
    )


def examine(
    kinds: Sequence[str] = KINDS, *, timeout: float = 60, share: float = 0.5
) -> Iterator[PathReport]:
    """Tries all paths, and yields each as soon as it is known.

    Args:
        kinds: of paths, from KINDS.
        timeout: seconds for one path.
        share: of what a link should give; less is a failure.

    Raises:
        ArgumentError: a kind that there is not.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise errors.ArgumentError(f'"{kind}": known are {", ".join(KINDS)}')
    listed = next(_answers([{"path": "list"}], timeout))
    if "error" in listed:
        yield PathReport("list", "this machine", _checks(listed))
        # Host memory can be tried without the list.
        listed = {"interfaces": [], "gpus": [], "why_no_gpu": listed["error"]}
    probes = []
    if "shared-memory" in kinds:
        probes.append(_Probe("shared memory", {"path": "shared-memory"}))
    if "interfaces" in kinds:
        probes += [
            _Probe(f"interface {name}", {"path": "interface", "name": name})
            for name in listed["interfaces"]
        ]
        probes.append(_Probe("rails (setting RAILS)", {"path": "rails"}))
    if "rdma" in kinds:
        probes.append(_Probe("RDMA adapters", {"path": "rdma"}))
    if "sisci" in kinds:
        probes.append(_Probe("PCIe bridges (SISCI)", {"path": "sisci"}))
    if "fabrics" in kinds:
        # libfabric loads libpsm2, too, and not with the environment that it needs without adapters.
        probes.append(_Probe("Omni-Path (libpsm2)", {"path": "psm2"}))
        probes.append(_Probe("fabrics (libfabric)", {"path": "ofi"}))
    if "gpus" in kinds and listed["gpus"]:
        probes += _gpu_probes(listed)
    requests = [probe.request for probe in probes]
    for probe, answer in zip(probes, _answers(requests, timeout)):
        checks = [_judged(check, probe.expected, share) for check in _checks(answer)]
        yield PathReport(probe.request["path"], probe.title, checks)
    if "gpus" in kinds and not listed["gpus"]:
        yield _no_gpus(listed["why_no_gpu"])
