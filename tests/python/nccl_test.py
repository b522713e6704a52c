"""`ropewalk nccl-graph` and `ropewalk nccl-env`."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree
from pathlib import Path

import pytest
from conftest import Program

MACHINES = Path(__file__).resolve().parent.parent / "topologies"
PAIR = str(MACHINES / "rccl-4gpu-4nic-x2.json")


def test_the_file_is_as_every_release_reads_it(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "rings.xml"
    done = program("nccl-graph", PAIR, "-o", str(file))
    assert done.returncode == 0, done.stderr
    text = file.read_text()
    assert "<?xml" not in text
    assert "\t" not in text
    assert all(re.fullmatch(r' *<[^<>"]*("[^"]*"[^<>"]*)*>', line) for line in text.splitlines())
    root = xml.etree.ElementTree.fromstring(text)
    assert root.attrib == {"version": "1"}
    rings, trees = root
    assert (rings.get("id"), rings.get("pattern"), rings.get("crossnic")) == ("0", "4", "2")
    assert trees.get("id") == "1"
    assert rings.get("nchannels") == trees.get("nchannels") == str(len(rings)) == str(len(trees))
    for graph in (rings, trees):
        for channel in graph:
            tags = [each.tag for each in channel]
            assert tags == ["net", "gpu", "gpu", "gpu", "gpu", "net"]
            assert all(each.get("dev", "").startswith("0x") for each in channel)
            assert len({each.get("dev") for each in channel if each.tag == "gpu"}) == 4
    assert sorted(channel[0].get("dev", "") for channel in rings) == ["0x0", "0x1", "0x2", "0x3"]
    assert sorted(channel[-1].get("dev", "") for channel in rings) == ["0x0", "0x1", "0x2", "0x3"]


def test_the_report_names_idle_nics_and_the_gain(program: Program, tmp_path: Path) -> None:
    done = program("nccl-env", PAIR)
    assert done.returncode == 0, done.stderr
    assert "2 of 4 NICs are idle" in done.stdout
    assert "1.92 times" in done.stdout
    assert "NCCL_GRAPH_FILE=FILE" in done.stdout
    file = tmp_path / "rings.xml"
    done = program("nccl-env", PAIR, "--export", str(file))
    assert f"export NCCL_GRAPH_FILE={file}" in done.stdout
    assert all(line.startswith("export NCCL_") for line in done.stdout.splitlines())
    done = program("nccl-env", PAIR, "--graph", str(file), "--json")
    report = json.loads(done.stdout)
    assert [rule["name"] for rule in report["rules"]][-1] == "given"
    assert report["rules"][-1]["busbw_gbps"] == report["rules"][-2]["busbw_gbps"]
    assert report["ratio"] >= 1.51


def test_a_measured_nic_takes_its_share(program: Program) -> None:
    report = json.loads(program("nccl-env", PAIR, "--nic-rate", "h0.nic2=3.125", "--json").stdout)
    slow = next(nic for nic in report["rules"][2]["nics"] if nic["id"] == "h0.nic2")
    fast = next(nic for nic in report["rules"][2]["nics"] if nic["id"] == "h0.nic0")
    assert slow["gbps"] == 3.125
    assert 0 < slow["in_gbps"] < fast["in_gbps"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((str(MACHINES / "h200-2gpu.json"),), "no NIC"),
        ((PAIR, "--host", "7"), "has 2 hosts"),
        ((PAIR, "--nic-rate", "h0.nic0"), "is not NIC=GB/s"),
        ((PAIR, "--nic-rate", "h0.nic9=1"), 'no NIC "h0.nic9"'),
        ((PAIR, "--nic-rate", "h0.nic0=-1"), "-1 GB/s"),
        ((PAIR, "--channels", "99"), "99 channels"),
        (("absent.json",), "absent.json"),
    ],
)
def test_what_is_wrong_is_named(program: Program, arguments: tuple[str, ...], said: str) -> None:
    for command in ("nccl-graph", "nccl-env"):
        done = program(command, *arguments)
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_a_wrong_graph_file_is_named_with_its_line(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "bad.xml"
    file.write_text('<graphs version="1">\n  <graph id="0"/>\n</graphs>\n')
    done = program("nccl-env", PAIR, "--graph", str(file))
    assert done.returncode == 2
    assert "graph: line 2" in done.stderr
    assert program("nccl-env", PAIR, "--graph", str(tmp_path / "absent")).returncode == 2


def test_plan_writes_the_same_file(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "rings.xml"
    done = program("plan", PAIR, "all_reduce", "--bound", "--nccl-graph", str(file))
    assert done.returncode == 0, done.stderr
    assert file.read_text() == program("nccl-graph", PAIR).stdout
