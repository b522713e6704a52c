"""Topologies in Python: values, files, matrices against golden ones, pictures."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import ropewalk
from ropewalk import topology
from ropewalk.cli import topo_text
from ropewalk.drawing import layout, machine
from ropewalk.topology import Topology

MACHINES = Path(__file__).parent.parent / "topologies"
GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in MACHINES.glob("*.json") if path.stem != "expected-bounds")
DESCRIBED = [
    *(str(MACHINES / f"{name}.json") for name in NAMES),
    *(str(path) for path in sorted(MACHINES.glob("*/*.xml"))),
    "3gpu nvmesh",
    "2x(16gpu nvswitch 2cpu 4pcie 8nic) rails",
    "6x(dgx-h100)",
    "cpu",
]


def recorded(name: str) -> Topology:
    return topology.read(MACHINES / f"{name}.json")


@pytest.mark.parametrize("name", NAMES)
def test_json_comes_back(name: str) -> None:
    shown = recorded(name)
    assert json.loads(shown.to_json()) == json.loads((MACHINES / f"{name}.json").read_text())
    assert Topology.from_json(shown.to_json()) == shown
    assert [gpu.rank for gpu in shown.gpus] == list(range(len(shown.gpus)))


def test_select_and_replicate() -> None:
    shown = recorded("dgx-a100")
    some = shown.select(plane="nvlink", gpus=[5, 2])
    assert [gpu.id for gpu in some.gpus] == ["gpu5", "gpu2"]
    assert {link.type for link in some.links} == {"nvlink"}
    assert len(shown.replicate(4).gpus) == 32
    assert len([n for n in shown.replicate(2, rails=True).nodes if n.kind == "network"]) == 8
    with pytest.raises(ropewalk.ArgumentError, match="GPU 8 is asked for; dgx-a100 has 8 GPUs"):
        shown.select(gpus=[8])
    with pytest.raises(ropewalk.ArgumentError, match="no GPU is asked for"):
        shown.select(gpus=[])
    with pytest.raises(ropewalk.ArgumentError, match=r'no plane "x"; it has nvlink, pcie, all'):
        shown.select(plane="x")


@pytest.mark.parametrize("name", ["dgx1v", "dgx-h100", "mi250-16gcd"])
def test_matrix_is_as_in_the_golden_file(name: str) -> None:
    shown = recorded(name)
    lines = topo_text.matrix_lines(shown, shown.matrix())
    assert "\n".join(lines) + "\n" == (GOLDEN / f"topo-{name}.txt").read_text()


def test_matrix_has_the_layout_of_nvidia_smi() -> None:
    """The rows that nvidia-smi 580 printed on a machine with two H200, tabs as spaces."""
    printed = ["GPU0\t X \tNV18\t0-31\t0", "GPU1\tNV18\t X \t0-31\t0"]
    here = topology.read(MACHINES / "hwloc" / "h200-2gpu.xml")
    raw = json.loads(here.to_json())
    raw["nodes"].append({"id": "nvs0", "kind": "nvswitch", "host": 0})
    for gpu in ("gpu0", "gpu1"):
        for ends in ((gpu, "nvs0"), ("nvs0", gpu)):
            raw["links"].append(
                {"src": ends[0], "dst": ends[1], "type": "nvlink", "capacity": 450, "lanes": 18}
            )
    raw["nodes"] = [node for node in raw["nodes"] if node["kind"] != "nic"]
    raw["links"] = [x for x in raw["links"] if "nic0" not in (x["src"], x["dst"])]
    shown = Topology.from_json(json.dumps(raw))
    lines = topo_text.matrix_lines(shown, shown.matrix())
    assert [line.split() for line in lines[1:3]] == [line.split() for line in printed]


@pytest.mark.parametrize("source", DESCRIBED)
def test_pictures_have_every_device(source: str) -> None:
    shown = topology.load(source)
    placed = layout.arrange(shown)
    drawn = machine.svg(shown)
    root = ElementTree.fromstring(drawn)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    expected = {n.id for n in shown.nodes if n.host is None or n.host < layout.MOST_HOSTS}
    networks = {n.id for n in shown.nodes if n.kind == "network"}
    assert set(placed.boxes) >= expected - networks
    boxes = list(placed.boxes.values())
    for box in boxes:
        assert 0 <= box.left <= box.right <= width
        assert 0 <= box.top <= box.bottom <= height
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            apart = abs(a.x - b.x) * 2 >= a.width + b.width - 0.2
            assert apart or abs(a.y - b.y) * 2 >= a.height + b.height, (a, b)
    for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", drawn):
        assert 0 <= float(x) <= width
        assert 0 <= float(y) <= height
    if shown.hosts > layout.MOST_HOSTS:
        assert f"{shown.hosts - layout.MOST_HOSTS} more identical hosts" in drawn


def test_widths_follow_capacity() -> None:
    assert machine.stroke_width(450, 450) > machine.stroke_width(48, 450) > 1
    assert machine.stroke_width(0.001, 450) == 1


def test_pictures_in_docs_are_current() -> None:
    for name in ("dgx1v", "dgx2", "dgx-a100-x2"):
        kept = (MACHINES.parent.parent / "docs" / "pictures" / f"{name}.svg").read_text()
        assert kept == machine.svg(recorded(name)), "make it anew: ropewalk topo --svg"


def test_lines_lead_from_box_to_box() -> None:
    placed = layout.arrange(recorded("dgx1v"))
    there, back = placed.path("gpu0", "plx0"), placed.path("plx0", "gpu0")
    assert there is not None
    assert back is not None
    points = re.findall(r"[-\d.]+ [-\d.]+", there)
    assert re.findall(r"[-\d.]+ [-\d.]+", back) == points[::-1]
    assert placed.path("gpu0", "nobody") is None
    assert placed.path("gpu0", "gpu3", 2) != placed.path("gpu0", "gpu3")


def test_nccl_xml_of_a_machine_reads_back() -> None:
    text, notes = recorded("dgx-h100").nccl_xml()
    assert any("bus ids are invented" in note for note in notes)
    assert Topology.from_json(text, "written").matrix().cells[0][:2] == ["X", "NV18"]


def test_discovery_sees_this_host() -> None:
    here = topology.discover()
    assert any(node.kind == "cpu" for node in here.nodes)
    assert Topology.from_json(here.to_json()) == here


def test_files_that_are_no_machine_are_named(tmp_path: Path) -> None:
    def complaint(content: bytes) -> str:
        path = tmp_path / "x.json"
        path.write_bytes(content)
        with pytest.raises(ropewalk.ArgumentError) as caught:
            topology.load(str(path))
        return str(caught.value).replace(str(path), "x.json")

    assert complaint(b"") == "x.json: empty"
    assert complaint(b"\0") == "x.json: not a text file"
    assert complaint(b"{\n1}").startswith("x.json: parse error at line 2, column 1")
    assert complaint(
        b'{"a": 1,\n "b": 1e999}'
    ) == "x.json: line 2, column 7: the number 1e999 is " + ("too large")
    assert (
        complaint(b'{"a": 1,\n "a": 2}')
        == 'x.json: line 2, column 4: field "a" twice in one object'
    )
    assert complaint(b'{\n"a": [[[[[[[1]]]]]]]}').startswith("x.json: line 2, column 11: nested")
    alone = json.loads(topology.synthetic("2gpu nvmesh").to_json())
    alone["links"] = alone["links"][:1]
    assert re.search(
        "the pcie link from gpu0 to cpu0 .48 GB/s. has no twin",
        complaint(json.dumps(alone).encode()),
    )
    with pytest.raises(ropewalk.ArgumentError, match="a folder, not a file"):
        topology.load(str(tmp_path))
    assert complaint(b"\xff\xfe").startswith("x.json: line 1: neither a topology in JSON nor")
    assert complaint(b'{"schema": "\xff"}').startswith("x.json: parse error at line 1")
    with pytest.raises(ropewalk.ArgumentError, match="no such file"):
        topology.load(str(tmp_path / "none.json"))
    with pytest.raises(ropewalk.ArgumentError, match="column 3: unknown word"):
        topology.load("  rope")


def test_known_machines_can_be_made() -> None:
    for preset in topology.presets():
        assert topology.synthetic(preset["name"]).to_json() != ""
