"""Positions of a machine's parts in a picture.

From above: networks, NICs, CPUs, PCIe switches (a row per level), GPUs, NVSwitches. Hosts stand
side by side. A node is a `Box`; a link is an SVG path from box to box, so that what is drawn along
links (loads, trees) has the same geometry as the machine beneath it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Final, Optional

from ropewalk.topology import Node, Topology

COLUMN: Final = 88.0
ROW: Final = 108.0
MARGIN: Final = 28.0
HOST_GAP: Final = 44.0
TITLE: Final = 66.0
MOST_HOSTS: Final = 4
_SIZES: Final = {
    "gpu": (72.0, 46.0),
    "nic": (72.0, 40.0),
    "cpu": (76.0, 42.0),
    "pcie_switch": (72.0, 30.0),
    "nvswitch": (78.0, 32.0),
    "network": (120.0, 30.0),
}


@dataclass
class Box:
    """A rectangle by its centre."""

    x: float
    y: float
    width: float
    height: float

    @property
    def top(self) -> float:
        """Upper edge."""
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        """Lower edge."""
        return self.y + self.height / 2

    @property
    def left(self) -> float:
        """Left edge."""
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        """Right edge."""
        return self.x + self.width / 2


@dataclass
class HostFrame:
    """The frame around a host."""

    host: int
    x: float
    y: float
    width: float
    height: float


@dataclass
class Layout:
    """Boxes of the drawn nodes, by id."""

    boxes: dict[str, Box]
    frames: list[HostFrame]
    width: float
    height: float
    hidden_hosts: int
    """identical hosts that are not drawn"""
    arcs_below: float
    """how far arcs between GPUs hang below their row"""
    ports: dict[tuple[str, str], float]
    """where an arc from one node to another in its row begins, from the box's middle"""

    def path(self, source: str, destination: str, shift: float = 0) -> Optional[str]:
        """The path of a link, moved sideways by `shift`; None where an end is not drawn."""
        a, b = self.boxes.get(source), self.boxes.get(destination)
        if a is None or b is None:
            return None
        if abs(a.y - b.y) < 1:
            return self._arc(source, destination, shift)
        if {_kind(a), _kind(b)} == {"nic", "pcie_switch"}:
            return self._past_cpus(a, b, shift)
        upper, lower = (a, b) if a.y < b.y else (b, a)
        # A wide box (a network, an NVSwitch) is met straight above or below the other end.
        x_upper = _clamp(lower.x, upper) if upper.width > lower.width * 1.5 else upper.x
        x_lower = _clamp(upper.x, lower) if lower.width > upper.width * 1.5 else lower.x
        start = (x_upper + shift, upper.bottom)
        end = (x_lower + shift, lower.top)
        if upper is b:
            start, end = end, start
        return f"M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"

    def _past_cpus(self, a: Box, b: Box, shift: float) -> str:
        """Between a NIC and its switch: straight down beside the CPUs, then to the switch."""
        nic, switch = (a, b) if _kind(a) == "nic" else (b, a)
        points = [
            (nic.x + shift, nic.bottom),
            (nic.x + shift, switch.top - 40),
            (switch.x + shift, switch.top),
        ]
        if nic is b:
            points.reverse()
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)

    def _arc(self, source: str, destination: str, shift: float) -> str:
        """Between boxes of one row: below it, the deeper the farther apart; CPUs: above."""
        a, b = self.boxes[source], self.boxes[destination]
        distance = abs(a.x - b.x)
        up = _kind(a) in ("cpu", "nic")
        depth = 28 + distance * 0.05 if up else arc_depth(distance)
        y = a.top if up else a.bottom
        control = y - min(depth, 60) if up else y + (depth + abs(shift)) * 4 / 3
        from_x = a.x + self.ports.get((source, destination), 0) + shift
        to_x = b.x + self.ports.get((destination, source), 0) + shift
        return (
            f"M{from_x:.1f} {y:.1f}C{from_x:.1f} {control:.1f} "
            f"{to_x:.1f} {control:.1f} {to_x:.1f} {y:.1f}"
        )


def _kind(box: Box) -> str:
    """The kind of node that a box is of; wide boxes (switches, networks) have none."""
    for kind, size in _SIZES.items():
        if (box.width, box.height) == size:
            return kind
    return ""


def arc_depth(distance: float) -> float:
    """How far an arc over so wide a gap hangs down."""
    return min(14 + distance * 0.2, 170.0)


def _ports(topology: Topology, boxes: dict[str, Box]) -> dict[tuple[str, str], float]:
    """Spreads the arcs of a node over its box, nested so that those of one side do not cross.

    From left to right: to the left, nearest first; to the right, nearest last.
    """
    around: dict[str, set[str]] = defaultdict(set)
    for link in topology.links:
        a, b = boxes.get(link.src), boxes.get(link.dst)
        if a is not None and b is not None and abs(a.y - b.y) < 1:
            around[link.src].add(link.dst)
            around[link.dst].add(link.src)
    ports: dict[tuple[str, str], float] = {}
    for id, others in around.items():
        here = boxes[id]
        left = sorted((o for o in others if boxes[o].x < here.x), key=lambda o: -boxes[o].x)
        right = sorted((o for o in others if boxes[o].x >= here.x), key=lambda o: -boxes[o].x)
        order = left + right
        usable = here.width - 14
        for i, other in enumerate(order):
            step = min(usable / max(len(order), 1), 18)
            ports[id, other] = (i - (len(order) - 1) / 2) * step
    return ports


def _clamp(x: float, box: Box) -> float:
    return min(max(x, box.left + 8), box.right - 8)


class _Host:
    """One host's nodes in rows, in units of columns."""

    def __init__(self, topology: Topology, host: int) -> None:
        self.nodes = [n for n in topology.nodes if n.host == host and n.kind != "network"]
        self.ids = {node.id: node for node in self.nodes}
        self.links = [x for x in topology.links if x.src in self.ids and x.dst in self.ids]
        self.parent, self.depth = self._tree()
        self.x: dict[str, float] = {}
        self.columns = 1.0
        self._place()

    def of(self, kind: str) -> list[Node]:
        found = [node for node in self.nodes if node.kind == kind]
        return sorted(found, key=lambda node: node.rank or 0) if kind == "gpu" else found

    def _tree(self) -> tuple[dict[str, str], dict[str, int]]:
        """What each node hangs on, breadth first from the CPUs over PCIe."""
        near: dict[str, list[str]] = defaultdict(list)
        for link in self.links:
            if link.type == "pcie" and "pcilink" not in link.attributes:
                near[link.src].append(link.dst)
        roots = [node.id for node in self.of("cpu")]
        parent: dict[str, str] = {}
        depth = dict.fromkeys(roots, 0)
        todo = deque(roots)
        while todo:
            at = todo.popleft()
            for to in near[at]:
                if to not in depth:
                    depth[to] = depth[at] + 1
                    parent[to] = at
                    todo.append(to)
        return parent, depth

    def _place(self) -> None:
        """GPUs in a row, in groups below what they hang on; all else above the middle of its own.

        NICs that have GPUs beside them do not widen the picture: they stand above those.
        """
        children: dict[str, list[str]] = defaultdict(list)
        for id, above in self.parent.items():
            children[above].append(id)
        cursor = 0.0

        def span(at: str) -> tuple[float, float]:
            """Places the part below `at`; its first and last column."""
            nonlocal cursor
            node = self.ids[at]
            below = [c for c in children[at] if self.ids[c].kind != "nic"]
            below.sort(key=lambda c: -1 if (rank := self.ids[c].rank) is None else rank)
            nics = [c for c in children[at] if self.ids[c].kind == "nic"]
            begin = cursor
            if node.kind == "gpu":
                self.x[at] = cursor
                cursor += 1
                return begin, cursor - 1
            for child in below:
                span(child)
            cursor = max(cursor, begin + 1)
            own = [self.x[c] for c in below] or [begin]
            first, last = min(own), max(own)
            self.x[at] = (first + last) / 2
            taken = [self.x[c] for c in self._above(at)]
            for i, nic in enumerate(nics):
                x = first + (i + 0.5) * (last - first + 1) / len(nics) - 0.5
                x = max(x, begin) if below else first + i
                # Its line down must not run through the CPU above the middle.
                if node.kind != "cpu" and abs(x - self._column_of_cpu(at)) < 0.5:
                    x = self._column_of_cpu(at) + 0.95
                while any(abs(x - other) < 0.92 for other in taken):
                    x += 0.1
                taken.append(x)
                self.x[nic] = x
                cursor = max(cursor, x + 1)
            return first, last

        for cpu in self.of("cpu"):
            span(cpu.id)
            cursor += 0.35
        loose = [n for n in self.nodes if n.id not in self.x]
        for node in [n for n in loose if n.kind in ("gpu", "pcie_switch")]:
            self.x[node.id] = cursor
            cursor += 1
        for node in [n for n in loose if n.kind == "nic"]:
            # A NIC of a GPU's own stands above it.
            gpus = [x.dst for x in self.links if x.src == node.id and x.dst in self.x]
            taken = [self.x[id] for id in self._above(node.id)]
            if gpus and self.x[gpus[0]] not in taken:
                self.x[node.id] = self.x[gpus[0]]
            else:
                self.x[node.id] = cursor
                cursor += 1
        self.columns = max(cursor - (0.35 if self.of("cpu") else 0), 1.0)
        chips = self.of("nvswitch")
        for i, chip in enumerate(chips):
            self.x[chip.id] = (i + 0.5) * self.columns / len(chips) - 0.5

    def _above(self, but: str) -> list[str]:
        return [n.id for n in self.nodes if n.kind == "nic" and n.id in self.x and n.id != but]

    def _column_of_cpu(self, switch: str) -> float:
        """The column of the CPU above, where that is known: with one switch, that of the switch."""
        above = self.parent.get(switch)
        while above is not None and above in self.parent:
            above = self.parent[above]
        switches = [c for c, p in self.parent.items() if p == above]
        alone = len([c for c in switches if self.ids[c].kind == "pcie_switch"]) == 1
        return self.x[switch] if alone else -9.0


def arrange(topology: Topology, *, title_height: float = TITLE) -> Layout:
    """Places all parts. Of more than four hosts, the first four are drawn."""
    shown = min(topology.hosts, MOST_HOSTS)
    hosts = [_Host(topology, host) for host in range(shown)]
    networks = [node for node in topology.nodes if node.kind == "network"]
    fans = [node for node in networks if _reaches(topology, node, hosts)]
    levels = max((_levels(host) for host in hosts), default=0)
    has = {kind: any(host.of(kind) for host in hosts) for kind in _SIZES}

    y = title_height + MARGIN
    rows: dict[str, float] = {}
    network_rows = len(fans) if len(fans) <= 2 else 1
    if fans:
        rows["network"] = y + 15
        y += 15 + 46 * network_rows + 20
    frame_top = y
    y += 46
    for kind in ("nic", "cpu"):
        if has[kind]:
            rows[kind] = y
            y += ROW * (0.92 if kind == "nic" else 1)
    for level in range(levels):
        rows[f"pcie_switch{level}"] = y
        y += ROW * 0.92
    rows["gpu"] = y
    lowest = y if has["gpu"] else y - ROW
    arcs = _arcs(hosts)
    if has["nvswitch"]:
        rows["nvswitch"] = lowest + ROW * 1.2 + (arcs * 0.5 if arcs else 0)
        lowest = rows["nvswitch"] + _arcs(hosts, "nvswitch")
    elif arcs:
        lowest += arcs
    frame_height = lowest + (48 if topology.hosts == 1 else 64) - frame_top

    boxes: dict[str, Box] = {}
    frames: list[HostFrame] = []
    x = MARGIN
    for index, host in enumerate(hosts):
        width = host.columns * COLUMN + 24
        frames.append(HostFrame(index, x, frame_top, width, frame_height))
        for node in host.nodes:
            if node.id in host.x:
                row = node.kind
                if row == "pcie_switch":
                    row += str(min(max(host.depth.get(node.id, 1) - 1, 0), max(levels - 1, 0)))
                size = _SIZES[node.kind]
                centre = x + 12 + (host.x[node.id] + 0.5) * COLUMN
                boxes[node.id] = Box(centre, rows[row], *size)
        chips = host.of("nvswitch")
        if len(chips) == 1 and host.of("gpu"):
            places = [boxes[gpu.id].x for gpu in host.of("gpu")]
            bar = boxes[chips[0].id]
            bar.x = (min(places) + max(places)) / 2
            bar.width = max(places) - min(places) + 72
        x += width + HOST_GAP
    total = x - HOST_GAP + MARGIN
    for i, node in enumerate(fans):
        if len(fans) <= 2:
            boxes[node.id] = Box(total / 2, rows["network"] + 46 * i, total - 2 * MARGIN, 30)
        else:
            each = (total - 2 * MARGIN) / len(fans)
            x = MARGIN + (i + 0.5) * each
            boxes[node.id] = Box(x, rows["network"], min(each - 10, 120), 30)
    return Layout(
        boxes=boxes,
        frames=frames,
        width=max(total, 640),
        height=frame_top + frame_height + MARGIN,
        hidden_hosts=topology.hosts - shown,
        arcs_below=arcs,
        ports=_ports(topology, boxes),
    )


def _reaches(topology: Topology, network: Node, hosts: list[_Host]) -> bool:
    ends = {x.src for x in topology.links if x.dst == network.id}
    ends |= {x.dst for x in topology.links if x.src == network.id}
    return any(end in host.ids for host in hosts for end in ends)


def _levels(host: _Host) -> int:
    depths = [host.depth.get(node.id, 1) for node in host.of("pcie_switch")]
    return max(depths, default=0)


def _arcs(hosts: list[_Host], kind: str = "gpu") -> float:
    """Depth of the deepest arc between GPUs, or between NVSwitches."""
    longest = 0.0
    for host in hosts:
        for link in host.links:
            if host.ids[link.src].kind == kind and host.ids[link.dst].kind == kind:
                longest = max(longest, abs(host.x[link.src] - host.x[link.dst]) * COLUMN)
    return 0.0 if longest == 0 else arc_depth(longest) + 14
