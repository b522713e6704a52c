"""Pairs of GPUs without access to each other's memory: by the setting PEER_ACCESS_DENY, and by a
check that finds wrong data. Ranks share a GPU where there are fewer."""

from __future__ import annotations

import re

import launcher
import pytest
from gpu_support import DEADLINE_SECONDS, need_ranks, num_gpus
from host_ranks import run, start

need_ranks()

INIT = {"DEBUG": "INFO", "DEBUG_SUBSYS": "INIT"}


@pytest.mark.parametrize(
    ("ranks", "denied", "missing"),
    [(2, "0-1", "1 of 1"), (3, "2-0", "1 of 3"), (4, "0-3,1-2", "2 of 6")],
)
def test_denied_pairs_go_through_the_hosts_memory(ranks: int, denied: str, missing: str) -> None:
    said = run("collectives", ranks, 1, PEER_ACCESS_DENY=denied, **INIT)
    assert f"{missing} pairs of GPUs have no access" in said[0], said[0]


@pytest.mark.parametrize("protocol", ["simple", "ll", "ll128"])
def test_every_protocol(protocol: str) -> None:
    """Links through the host have no ll128: what uses one takes another protocol."""
    run("collectives", 3, 1, PEER_ACCESS_DENY="0-1", PROTOCOL=protocol)


def test_by_address_where_pairs_have_access() -> None:
    run("collectives", 3, 1, PEER_ACCESS_DENY="1-2", DIRECT_BUFFERS="on")


def test_in_graphs() -> None:
    run("graph", 2, 1, PEER_ACCESS_DENY="0-1")


def test_on_several_hosts() -> None:
    """Ranks 0 and 1 are on one host and have no access, 2 and 3 on another one and have it."""
    run("collectives", 4, 2, PEER_ACCESS_DENY="0-1", NET="shm")


def test_wrong_data_is_found_before_use() -> None:
    said = run("collectives", 3, 1, PEER_ACCESS_FAULTY="0-2", **INIT)
    assert "arrived wrong" in said[0] + said[2]
    assert "1 of 3 pairs of GPUs have no access" in said[0]
    assert "arrived wrong" not in said[1]


def test_rings_go_around_denied_pairs() -> None:
    """In the order 0, 1, 3, 2 a ring has the price that it has without denied pairs. What sends to
    all ranks has not."""

    def predicted(**settings: str) -> dict[str, float]:
        said = run("prices", 4, 1, TUNE="0", **settings)[0]
        return {name: float(us) for name, us in re.findall(r"^(\w+) ([0-9.]+) us$", said, re.M)}

    beside = predicted(PEER_ACCESS_DENY="0-3,1-2")
    all_there = predicted()
    assert beside["ring"] == all_there["ring"]
    assert beside["two_shot"] > 1.5 * all_there["two_shot"]


def test_bounds_of_blocks_hold() -> None:
    """A collective of many MiB takes all channels, but for the bound."""
    settings = {"DEBUG": "INFO", "DEBUG_SUBSYS": "TUNING", "TUNE": "0"}
    channels = r"all_reduce of \d+ bytes in a unit, 2 GPUs: \S+ \S+ (\d+)x\d+"

    def most(**bounds: str) -> int:
        said = run("collectives", 2, 1, **settings, **bounds)[0]
        return max(int(found) for found in re.findall(channels, said))

    assert most(MAX_BLOCKS="3") == 3
    assert most() > 3


def test_a_killed_rank_is_seen_through_the_hosts_memory() -> None:
    processes = start("lost", 2, 1, PEER_ACCESS_DENY="0-1")
    _, words = launcher.lost_after_kill(processes, DEADLINE_SECONDS)
    assert "rank 1" in words


@pytest.mark.skipif(num_gpus() < 4, reason="needs 4 GPUs")
def test_speed_beside_denied_pairs() -> None:
    """Printed, not judged: benchmarks/gpu_table compares the two."""
    print(run("speed", 4, 1)[0])
    print(run("speed", 4, 1, PEER_ACCESS_DENY="0-3,1-2")[0])
