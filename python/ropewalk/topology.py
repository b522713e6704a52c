"""Machines as graphs: GPUs, switches, CPUs, NICs, networks, and the links between them.

Capacities are GB/s (10^9 bytes per second) of one direction. A topology is a value: methods that
change something give a new one.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Final, Optional

from ropewalk import errors
from ropewalk._library import TopologyHandle, json_of, library, made, text_of
from ropewalk.arguments import integer, integers, text_or_none
from ropewalk.arguments import text as text_argument

HERE: Final = "here"
"""the name by which `load` discovers this machine"""


@dataclass(frozen=True)
class Node:
    """A device. `kind` is gpu, nvswitch, pcie_switch, cpu (a NUMA node), nic or network."""

    id: str
    kind: str
    host: Optional[int]
    rank: Optional[int] = None
    numa: Optional[int] = None
    model: str = ""
    device: str = ""
    bus_id: str = ""
    cpus: str = ""
    net_gbps: Optional[float] = None
    package: Optional[int] = None
    board: Optional[int] = None
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Link:
    """One direction between two nodes, named by their ids."""

    src: str
    dst: str
    type: str
    capacity: float
    lanes: Optional[int] = None
    latency_us: Optional[float] = None
    nominal: Optional[float] = None
    effective: Optional[float] = None
    nccl_model: Optional[float] = None
    gen: Optional[int] = None
    width: Optional[int] = None
    measured: Optional[str] = None
    assumed: Optional[bool] = None
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Matrix:
    """Distances in the classes of `nvidia-smi topo -m`: cells[row][column]."""

    ids: list[str]
    labels: list[str]
    cpus: list[str]
    numas: list[Optional[int]]
    cells: list[list[str]]


@dataclass(frozen=True)
class Placement:
    """The resources of one rank of a host: ids of nodes, and a list of CPUs."""

    gpu: Optional[str]
    cpu: Optional[str]
    numa: Optional[int]
    cpus: str
    nics: list[str]
    nic_path: Optional[str]


class Topology:
    """A machine, validated. Made by `load`, `discover`, `synthetic`, `read` or `from_json`.

    Threads: any number at once. Pickled as its JSON text.
    """

    def __init__(self, handle: TopologyHandle) -> None:
        self._handle = handle

    @property
    def c_handle(self) -> TopologyHandle:
        """What functions of the C library take. Freed with this object."""
        return self._handle

    @cached_property
    def _text(self) -> str:
        return text_of(library().rwTopologyJson, self._handle)

    @cached_property
    def _fields(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self._text)
        return parsed

    @property
    def name(self) -> str:
        """Its name."""
        return self._fields["name"]  # type: ignore[no-any-return]

    @property
    def title(self) -> str:
        """Its title."""
        return self._fields["title"]  # type: ignore[no-any-return]

    @property
    def hosts(self) -> int:
        """How many hosts it has."""
        return self._fields["hosts"]  # type: ignore[no-any-return]

    @property
    def symmetric(self) -> bool:
        """Whether every link has a twin in the other direction, of the same type and capacity."""
        return self._fields["symmetric"]  # type: ignore[no-any-return]

    @property
    def lane_gbps(self) -> Optional[float]:
        """Capacity of one NVLink or xGMI lane, where it is known."""
        return self._fields.get("lane_gbps")

    @property
    def planes(self) -> dict[str, list[str]]:
        """By name: the types of the links of that sub-graph."""
        return self._fields["planes"]  # type: ignore[no-any-return]

    @property
    def sources(self) -> list[str]:
        """Where the numbers come from."""
        return self._fields["sources"]  # type: ignore[no-any-return]

    @property
    def assumptions(self) -> list[str]:
        """What was assumed, or could not be discovered."""
        return self._fields["assumptions"]  # type: ignore[no-any-return]

    @cached_property
    def nodes(self) -> list[Node]:
        """All devices."""
        return [Node(**{"host": None, **each}) for each in self._fields["nodes"]]

    @cached_property
    def links(self) -> list[Link]:
        """All links, each direction by itself."""
        return [Link(**each) for each in self._fields["links"]]

    @staticmethod
    def from_json(text: str, origin: str = "topology") -> Topology:
        """Reads JSON of the schema gpu-topology/1; NCCL's and hwloc's XML too.

        Raises:
            ArgumentError: names `origin` and the line or JSON path of what is wrong.
        """
        return Topology(
            made(
                TopologyHandle,
                library().rwTopologyRead,
                text_argument(text, "text"),
                text_argument(origin, "origin"),
            )
        )

    def to_json(self) -> str:
        """The canonical text: fields in a fixed order, a node and a link per line."""
        return self._text

    @property
    def gpus(self) -> list[Node]:
        """By rank."""
        return sorted(
            (node for node in self.nodes if node.kind == "gpu"), key=lambda node: node.rank or 0
        )

    def node(self, node_id: str) -> Node:
        """The node of that id. Raises KeyError where there is none."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise KeyError(node_id)

    def select(
        self, *, plane: Optional[str] = None, gpus: Optional[Sequence[int]] = None
    ) -> Topology:
        """The links of one plane only, and only these GPUs; gpus[i] becomes rank i."""
        chosen = None if gpus is None else integers(gpus, "gpus")
        ranks = None if chosen is None else (ctypes.c_int * max(len(chosen), 1))(*chosen)
        return Topology(
            made(
                TopologyHandle,
                library().rwTopologySelect,
                self._handle,
                text_or_none(plane, "plane"),
                ranks,
                0 if chosen is None else len(chosen),
            )
        )

    def replicate(self, hosts: int, *, rails: bool = False) -> Topology:
        """Copies of this one-host machine, joined by one network, or one for each NIC number."""
        return Topology(
            made(
                TopologyHandle,
                library().rwTopologyReplicate,
                self._handle,
                integer(hosts, "hosts"),
                int(bool(rails)),
            )
        )

    def matrix(self, host: int = -1) -> Matrix:
        """Distances between the GPUs and NICs of one host, or of all (-1)."""
        raw = json_of(library().rwTopologyMatrix, self._handle, integer(host, "host"))
        devices = raw["devices"]
        return Matrix(
            ids=[each["id"] for each in devices],
            labels=[each["label"] for each in devices],
            cpus=[each["cpus"] for each in devices],
            numas=[each["numa"] for each in devices],
            cells=raw["cells"],
        )

    def nccl_xml(self, host: int = 0) -> tuple[str, list[str]]:
        """A file for NCCL_TOPO_FILE, and notes on invented values and inexpressible parts."""
        raw = json_of(library().rwTopologyNcclXml, self._handle, integer(host, "host"))
        return raw["text"], raw["notes"]

    def place(self, local_size: int, host: int = 0) -> list[Placement]:
        """The resources of each rank on a host, by local rank."""
        raw = json_of(
            library().rwTopologyPlace,
            self._handle,
            integer(host, "host"),
            integer(local_size, "local_size"),
        )
        return [Placement(**each) for each in raw]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topology):
            return False
        return self._handle is other._handle or self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __copy__(self) -> Topology:
        return Topology(self._handle)

    def __deepcopy__(self, memo: dict[int, Any]) -> Topology:
        """Lists and attributes of its own; the machine itself never changes."""
        return Topology(self._handle)

    def __reduce__(self) -> tuple[Callable[[str], Topology], tuple[str]]:
        """For pickle: another process reads the text."""
        return Topology.from_json, (self._text,)

    def __repr__(self) -> str:
        return f"<Topology {self.name}: {self.hosts} hosts, {len(self.gpus)} GPUs>"


def discover() -> Topology:
    """This host: by hwloc, sysfs and NVML. What could not be seen is in `assumptions`."""
    return Topology(made(TopologyHandle, library().rwTopologyDiscover))


def synthetic(description: str) -> Topology:
    """A machine from a short string: "2x(8gpu nvswitch) 8nic", "dgx-a100"."""
    words = text_argument(description, "description")
    return Topology(made(TopologyHandle, library().rwTopologySynthetic, words))


def presets() -> list[dict[str, str]]:
    """Name, parts and help of each machine that `synthetic` knows by name."""
    found: list[dict[str, str]] = json_of(library().rwTopologyPresets)
    return found


def read(path: Path | str) -> Topology:
    """A file: JSON, NCCL's topology XML, or hwloc's XML.

    Raises:
        ArgumentError: names the file, and the line or JSON path of what is wrong.
    """
    # Not by rwTopologyReadFile: Ctrl-C ends Python's reading of a pipe.
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise errors.ArgumentError(f"{path}: {error.strerror}") from error
    if b"\0" in data:
        raise errors.ArgumentError(f"{path}: not a text file")
    return Topology(made(TopologyHandle, library().rwTopologyRead, data, str(path).encode()))


def load(source: str) -> Topology:
    """A machine by name: a file, "here" for this host, or a synthetic description."""
    if source == HERE:
        return discover()
    if Path(source).is_file():
        return read(source)
    if Path(source).is_dir():
        raise errors.ArgumentError(f"{source}: a folder, not a file")
    if source.endswith((".json", ".xml")) or "/" in source:
        raise errors.ArgumentError(f"{source}: no such file")
    return synthetic(source)
