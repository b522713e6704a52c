"""GPUs on several hosts, which the setting HOST_ID makes of one: over every transport.

Over `shm`, `sisci` and what `auto` finds, kernels write the other hosts' windows; over others, and
with LINKS=network, threads move what kernels leave in pinned memory. The bridges of `sisci` are
software ones: it needs sisci/libsisci.so from the build folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import launcher
import pytest
from gpu_support import DEADLINE_SECONDS, need_ranks
from host_ranks import run, start

need_ranks()

BRIDGES = Path(os.environ.get("RW_BUILD_DIR", "build/release")).resolve() / "sisci/libsisci.so"


def over_bridges() -> dict[str, str]:
    if not BRIDGES.exists():
        pytest.skip(f"{BRIDGES} is not built")
    return {"NET": "sisci", "SISCI_LIBRARY": str(BRIDGES)}


@pytest.mark.parametrize("net", ["tcp", "shm", "auto"])
@pytest.mark.parametrize(("ranks", "hosts"), [(2, 2), (3, 2), (4, 2)])
def test_every_operation_gives_right_results(net: str, ranks: int, hosts: int) -> None:
    run("collectives", ranks, hosts, NET=net)


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 2), (4, 2)])
def test_over_bridges(ranks: int, hosts: int) -> None:
    said = run("collectives", ranks, hosts, DEBUG="INFO", **over_bridges())
    assert "of different hosts over sisci" in said[0]


@pytest.mark.parametrize("ranks", [2, 3])
def test_by_threads_over_shared_memory(ranks: int) -> None:
    said = run("collectives", ranks, ranks, NET="shm", LINKS="network", DEBUG="INFO")
    assert "pinned memory for links over shm" in said[0]


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 2), (3, 2)])
def test_slots_in_gpu_memory(ranks: int, hosts: int) -> None:
    settings = {"LINKS": "network", "NET_GPU_SLOTS": "on", "NET_GPU_FLUSH": "always"}
    settings |= over_bridges()
    said = run("collectives", ranks, hosts, DEBUG="INFO", **settings)
    assert "slots on the GPU" in said[0]


def test_windows_are_what_shared_memory_gives() -> None:
    said = run("graph", 2, 2, NET="shm", DEBUG="INFO")
    assert "of different hosts over shm" in said[0]
    assert "pinned memory for links" not in said[0]


@pytest.mark.parametrize("links", ["auto", "network"])
def test_without_peer_access(links: str) -> None:
    run("collectives", 4, 2, NET="shm", PEER_ACCESS="0", LINKS=links)


def test_encrypted() -> None:
    run("collectives", 2, 2, NET="tcp", NET_ENCRYPT="1")


@pytest.mark.parametrize("net", ["tcp", "shm"])
def test_operations_in_graphs(net: str) -> None:
    run("graph", 2, 2, NET=net)


@pytest.mark.parametrize("protocol", ["simple", "ll"])
def test_every_protocol_in_windows(protocol: str) -> None:
    run("collectives", 4, 2, NET="shm", PROTOCOL=protocol)


@pytest.mark.parametrize("net", ["tcp", "shm"])
def test_a_speed_is_measured(net: str) -> None:
    print(run("speed", 2, 2, NET=net)[0])


@pytest.mark.parametrize("net", ["tcp", "shm"])
def test_a_killed_rank_is_seen_while_a_kernel_spins(net: str) -> None:
    """Within 1 s of the kill, as between GPUs of one host."""
    processes = start("lost", 2, 2, NET=net)
    took, words = launcher.lost_after_kill(processes, DEADLINE_SECONDS)
    assert "rank 1" in words
    print(f"seen {took:.3f} s after the kill")
    assert took < 1


@pytest.mark.parametrize("net", ["tcp", "shm"])
def test_right_results_over_a_late_transport(net: str) -> None:
    run("collectives", 4, 2, NET=net, FAULTY="delay=300us,reorder=0.1,seed=1")


def test_a_failing_transport_ends_all_kernels_by_name() -> None:
    """Within a second of the first failure, each rank; the setting TIMEOUT is far away."""
    said = run("until_error", 2, 2, NET="tcp", FAULTY="fail=0.005,seed=1", TIMEOUT="100s")
    times = []
    for text in said:
        found = re.search(r"PeerLostError after \d+ calls at ([0-9.]+): .*rank \d", text)
        assert found, text
        times.append(float(found.group(1)))
    print(f"{max(times) - min(times):.3f} s between the ranks' errors")
    assert max(times) - min(times) < 1


def test_what_a_transport_loses_ends_at_the_limit() -> None:
    said = run("until_error", 2, 2, NET="tcp", FAULTY="drop=0.005,seed=1", TIMEOUT="3s")
    assert any("TimeoutError after" in text for text in said), said
    assert all("Error after" in text for text in said), said
