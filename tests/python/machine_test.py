"""The machine that a communicator's ranks run on: Communicator.topology and where its ranks are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import ropewalk
from conftest import Program, Worlds, run_ranks


def test_every_rank_has_this_hosts_topology(worlds: Worlds) -> None:
    found = run_ranks(worlds(3), lambda comm: comm.topology)
    assert found[1:] == found[:-1]
    here = ropewalk.topology.discover()
    assert found[0].name == here.name
    assert {node.id for node in here.nodes} <= {node.id for node in found[0].nodes}


def test_ranks_are_on_numa_nodes_of_it(worlds: Worlds) -> None:
    for comm in worlds(3):
        assert [comm.topology.node(each).kind for each in comm.node_of_rank] == ["cpu"] * 3
        assert sorted(comm.ring_order) == [0, 1, 2]


def test_explain_names_it(worlds: Worlds) -> None:
    found = [comm.explain("all_reduce", 1024)["machine"] for comm in worlds(3)]
    assert found[1:] == found[:-1]
    assert found[0]["name"] == worlds(3)[0].topology.name
    assert found[0]["origin"] == "found" or found[0]["origin"].startswith("kept in ")
    assert len(found[0]["fingerprint"]) == 16


def test_the_setting_topology_comes_first(program: Program) -> None:
    done = program(
        "explain", "all_reduce", "--ranks", "2", "--json", "--set", "TOPOLOGY=2gpu nvring"
    )
    machine = json.loads(done.stdout)["machine"]
    assert machine["name"] == "2gpu nvring"
    assert machine["origin"].startswith("setting TOPOLOGY")


def test_hosts_are_merged(program: Program) -> None:
    done = program("explain", "all_reduce", "--ranks", "3", "--json", "--set", "LINKS=network")
    assert json.loads(done.stdout)["machine"]["name"].endswith("-x3")


def test_it_is_kept_for_the_next_job(program: Program, tmp_path: Path) -> None:
    origins = []
    for _ in range(2):
        done = program("explain", "all_reduce", "--json", "--set", f"TOPOLOGY_CACHE={tmp_path}")
        origins.append(json.loads(done.stdout)["machine"]["origin"])
    (kept,) = tmp_path.iterdir()
    assert origins == ["found", f"kept in {kept}"]


def test_a_closed_communicator_has_none() -> None:
    (comm,) = ropewalk.init_all(1)
    comm.finalize()
    with pytest.raises(ropewalk.UsageError):
        _ = comm.topology
    with pytest.raises(ropewalk.UsageError):
        _ = comm.node_of_rank
