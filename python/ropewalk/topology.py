"""Machines as graphs: GPUs, switches, CPUs, NICs, networks, and the links between them.

Capacities are GB/s (10^9 bytes per second) of one direction. A topology is a value: methods that
change something give a new one.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Optional

from ropewalk import errors
from ropewalk._library import json_of, library, text_of
from ropewalk.arguments import integer, integers, text_or_none
from ropewalk.arguments import text as text_argument

HERE: Final = "here"
"""what `load` takes for the machine at hand"""


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
    """What belongs to one rank of a host: ids of nodes, and a list of CPUs."""

    gpu: Optional[str]
    cpu: Optional[str]
    numa: Optional[int]
    cpus: str
    nics: list[str]
    nic_path: Optional[str]


class Topology:
    """A machine, validated. Made by `load`, `discover`, `synthetic`, `read` or `from_json`."""

    def __init__(self, canonical: str) -> None:
        self._text = canonical
        raw = json.loads(canonical)
        self.name: Final[str] = raw["name"]
        self.title: Final[str] = raw["title"]
        self.hosts: Final[int] = raw["hosts"]
        self.symmetric: Final[bool] = raw["symmetric"]
        self.lane_gbps: Final[Optional[float]] = raw.get("lane_gbps")
        self.planes: Final[dict[str, list[str]]] = raw["planes"]
        self.sources: Final[list[str]] = raw["sources"]
        self.assumptions: Final[list[str]] = raw["assumptions"]
        self.nodes: Final[list[Node]] = [Node(**{"host": None, **each}) for each in raw["nodes"]]
        self.links: Final[list[Link]] = [Link(**each) for each in raw["links"]]

    @staticmethod
    def from_json(text: str, origin: str = "topology") -> Topology:
        """Reads JSON of the schema gpu-topology/1; NCCL's and hwloc's XML too.

        Raises:
            ArgumentError: names `origin` and the line or JSON path of what is wrong.
        """
        return Topology(
            text_of(
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
            text_of(
                library().rwTopologySelect,
                self._text.encode(),
                text_or_none(plane, "plane"),
                ranks,
                0 if chosen is None else len(chosen),
            )
        )

    def replicate(self, hosts: int, *, rails: bool = False) -> Topology:
        """Copies of this one-host machine, joined by one network, or one for each NIC place."""
        return Topology(
            text_of(
                library().rwTopologyReplicate,
                self._text.encode(),
                integer(hosts, "hosts"),
                int(bool(rails)),
            )
        )

    def matrix(self, host: int = -1) -> Matrix:
        """Distances between the GPUs and NICs of one host, or of all (-1)."""
        raw = json_of(library().rwTopologyMatrix, self._text.encode(), integer(host, "host"))
        devices = raw["devices"]
        return Matrix(
            ids=[each["id"] for each in devices],
            labels=[each["label"] for each in devices],
            cpus=[each["cpus"] for each in devices],
            numas=[each["numa"] for each in devices],
            cells=raw["cells"],
        )

    def nccl_xml(self, host: int = 0) -> tuple[str, list[str]]:
        """A file for NCCL_TOPO_FILE, and notes on what was invented or cannot be said."""
        raw = json_of(library().rwTopologyNcclXml, self._text.encode(), integer(host, "host"))
        return raw["text"], raw["notes"]

    def place(self, local_size: int, host: int = 0) -> list[Placement]:
        """What belongs to each of so many ranks on a host, by local rank."""
        raw = json_of(
            library().rwTopologyPlace,
            self._text.encode(),
            integer(host, "host"),
            integer(local_size, "local_size"),
        )
        return [Placement(**each) for each in raw]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return f"<Topology {self.name}: {self.hosts} hosts, {len(self.gpus)} GPUs>"


def discover() -> Topology:
    """This host: by hwloc, sysfs and NVML. What could not be seen is in `assumptions`."""
    return Topology(text_of(library().rwTopologyDiscover))


def synthetic(description: str) -> Topology:
    """A machine from a short string: "2x(8gpu nvswitch) 8nic", "dgx-a100"."""
    return Topology(
        text_of(library().rwTopologySynthetic, text_argument(description, "description"))
    )


def presets() -> list[dict[str, str]]:
    """Name, parts and help of each machine that `synthetic` knows by name."""
    found: list[dict[str, str]] = json_of(library().rwTopologyPresets)
    return found


def read(path: Path | str) -> Topology:
    """A file: JSON, NCCL's topology XML, or hwloc's XML.

    Raises:
        ArgumentError: names the file, and the line or JSON path of what is wrong.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise errors.ArgumentError(f"{path}: {error.strerror}") from error
    if b"\0" in data:
        raise errors.ArgumentError(f"{path}: not a text file")
    return Topology(text_of(library().rwTopologyRead, data, str(path).encode()))


def load(source: str) -> Topology:
    """What a person names: a file, "here" for this host, or a synthetic description."""
    if source == HERE:
        return discover()
    if Path(source).is_file():
        return read(source)
    if Path(source).is_dir():
        raise errors.ArgumentError(f"{source}: a folder, not a file")
    if source.endswith((".json", ".xml")) or "/" in source:
        raise errors.ArgumentError(f"{source}: no such file")
    return synthetic(source)
