"""A machine as text: the matrix in the layout of `nvidia-smi topo -m`, and a tree."""

from __future__ import annotations

from collections import defaultdict
from typing import Final, Optional

from rich.text import Text
from rich.tree import Tree

from ropewalk.drawing.machine import short_model
from ropewalk.topology import Link, Matrix, Node, Topology

_LEGEND: Final = {
    "X": "itself",
    "NET": "another host, through a network or bridge",
    "SYS": "PCIe and the link between NUMA nodes (UPI, QPI, Infinity Fabric)",
    "NODE": "PCIe and two host bridges of one NUMA node",
    "PHB": "PCIe and one host bridge (typically the CPU)",
    "PXB": "several PCIe bridges, but no host bridge",
    "PIX": "at most one PCIe bridge",
    "NV#": "# NVLinks",
    "XG#": "# xGMI links",
    "-": "no path except through another GPU",
}


def matrix_lines(topology: Topology, matrix: Matrix) -> list[str]:
    """The matrix with affinities, its legend, and the names of NICs."""
    if not matrix.labels:
        return ["This machine has neither GPU nor NIC."]
    with_cpus = any(matrix.cpus) or any(numa is not None for numa in matrix.numas)
    head = ["", *matrix.labels] + (["CPU Affinity", "NUMA Affinity"] if with_cpus else [])
    rows = [head]
    for label, cells, cpus, numa in zip(matrix.labels, matrix.cells, matrix.cpus, matrix.numas):
        row = [label, *(f" {cell} " if cell == "X" else cell for cell in cells)]
        if with_cpus:
            row += [cpus or "N/A", "N/A" if numa is None else str(numa)]
        rows.append(row)
    lines = _columns(rows)
    lines += ["", "Legend:", ""]
    lines += [f"  {mark:<4} = {words}" for mark, words in _used(matrix).items()]
    nics = [
        f"  {label}: {_nic_name(topology.node(id))}"
        for label, id in zip(matrix.labels, matrix.ids)
        if label.startswith("NIC")
    ]
    if nics:
        lines += ["", "NIC Legend:", "", *nics]
    return lines


def _columns(rows: list[list[str]]) -> list[str]:
    """As nvidia-smi: columns at multiples of 8, left aligned."""
    widths = [
        (max(len(row[i]) for row in rows if i < len(row)) // 8 + 1) * 8 for i in range(len(rows[0]))
    ]
    return [
        "".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows
    ]


def _used(matrix: Matrix) -> dict[str, str]:
    """The legend without what no machine of this kind has."""
    present = {cell.rstrip("0123456789") for row in matrix.cells for cell in row}
    optional = {"NET": "NET", "XG#": "XG", "-": "-"}
    return {
        mark: words
        for mark, words in _LEGEND.items()
        if mark not in optional or optional[mark] in present
    }


def _nic_name(node: Node) -> str:
    words = node.device or node.id
    return f"{words} ({node.net_gbps:g} GB/s)" if node.net_gbps else words


def tree(topology: Topology) -> list[Tree]:
    """A tree per host: CPUs, what hangs on them by PCIe, and each device's other links."""
    return [_HostTree(topology, host).tree() for host in range(topology.hosts)]


class _HostTree:
    def __init__(self, topology: Topology, host: int) -> None:
        self._topology = topology
        self._host = host
        self._nodes = {n.id: n for n in topology.nodes if n.host == host and n.kind != "network"}
        self._all = {node.id: node for node in topology.nodes}
        self._from: dict[str, list[Link]] = defaultdict(list)
        for link in topology.links:
            if link.src in self._nodes:
                self._from[link.src].append(link)
        self._nics = [node.id for node in topology.nodes if node.kind == "nic"]
        self._shown: set[str] = set()

    def tree(self) -> Tree:
        name = self._topology.name if self._topology.hosts == 1 else f"host {self._host}"
        root = Tree(Text(name, "bold"))
        for node in self._nodes.values():
            if node.kind == "cpu":
                self._shown.add(node.id)
        for node in self._nodes.values():
            if node.kind == "cpu":
                self._grow(root.add(self._label(node, None)), node.id)
        for node in self._nodes.values():
            if node.id not in self._shown:
                self._shown.add(node.id)
                self._grow(root.add(self._label(node, None)), node.id)
        return root

    def _grow(self, branch: Tree, at: str) -> None:
        for link in self._from[at]:
            below = self._nodes.get(link.dst)
            if link.type != "pcie" or below is None or below.id in self._shown:
                continue
            self._shown.add(below.id)
            self._grow(branch.add(self._label(below, link)), below.id)

    def _label(self, node: Node, link: Optional[Link]) -> Text:
        text = Text(self._name(node), "bold")
        details = [node.id] if node.id not in text.plain else []
        details += [part for part in (short_model(node.model), node.device, node.bus_id) if part]
        if node.net_gbps:
            details.append(f"{node.net_gbps:g} GB/s")
        if node.cpus:
            details.append(f"CPUs {node.cpus}")
        text.append("  " + ", ".join(details) if details else "", "not bold")
        if link is not None:
            text.append(f"  {_rate(link)}", "not bold cyan")
        others = self._others(node)
        if others:
            text.append(f"  {others}", "not bold green")
        return text

    def _name(self, node: Node) -> str:
        if node.kind == "gpu":
            return f"GPU {node.rank}"
        if node.kind == "nic":
            return f"NIC {self._nics.index(node.id)}"
        if node.kind == "cpu":
            return "CPU" if node.numa is None else f"NUMA node {node.numa}"
        return {"nvswitch": "NVSwitch", "pcie_switch": "PCIe switch"}[node.kind]

    def _others(self, node: Node) -> str:
        """The links that are not of the tree: "nvlink 450 to NVSwitch"."""
        if node.kind not in ("gpu", "nic"):
            return ""
        by_rate: dict[tuple[str, float], list[str]] = defaultdict(list)
        for link in self._from[node.id]:
            if link.type == "pcie":
                continue
            end = self._all[link.dst]
            name = self._name(end) if end.kind in ("gpu", "nvswitch") else end.id
            by_rate[(link.type, link.capacity)].append(name)
        return "; ".join(
            f"{type} {capacity:g} GB/s to {', '.join(_shortened(names))}"
            for (type, capacity), names in by_rate.items()
        )


def _shortened(names: list[str]) -> list[str]:
    """The same name once: "NVSwitch (6)"."""
    counts = {name: names.count(name) for name in names}
    return [name if count == 1 else f"{name} ({count})" for name, count in counts.items()]


def _rate(link: Link) -> str:
    shape = f"gen {link.gen} x{link.width or 16}, " if link.gen else ""
    return f"[{shape}{link.capacity:g} GB/s{', assumed' if link.assumed else ''}]"
