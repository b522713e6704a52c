"""Why an operation runs by the algorithm that it does: Communicator.explain, `ropewalk explain`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import ropewalk
from conftest import DEADLINE_SECONDS, Program
from ropewalk import schedule
from ropewalk.cli import explain

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")


@pytest.fixture
def pair() -> Iterator[ropewalk.Communicator]:
    comms = ropewalk.init_all(2)
    yield comms[0]
    for comm in comms:
        comm.abort()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_cheapest_candidate_comes_first(pair: ropewalk.Communicator, operation: str) -> None:
    found = pair.explain(operation, 1 << 20)
    times = [each["predicted_us"] for each in found["candidates"]]
    assert times == sorted(times) and times[0] > 0
    assert found["ranks"] == 2 and found["hosts"] == 1 and found["network"] is None
    assert found["network_slots"] is None
    assert found["chosen"] in [each["algorithm"] for each in found["candidates"]]
    assert found["chosen_by"] == "cost model"


def test_larger_messages_take_longer(pair: ropewalk.Communicator) -> None:
    small, large = (pair.explain("all_reduce", size)["candidates"][0] for size in (8, 1 << 26))
    assert large["predicted_us"] > 10 * small["predicted_us"]


@pytest.mark.parametrize("operation", (*OPERATIONS, "gather", "scatter"))
def test_a_size_is_that_of_the_larger_buffer(pair: ropewalk.Communicator, operation: str) -> None:
    root = {"root": 1} if operation in ("broadcast", "reduce", "gather", "scatter") else {}

    def times(size: int) -> list[float]:
        return [
            each["predicted_us"] for each in pair.explain(operation, size, **root)["candidates"]
        ]

    whole = operation in ("all_reduce", "broadcast", "reduce")
    assert (times((1 << 20) + 1) == times(1 << 20)) == (not whole)  # a block for each of 2 ranks
    assert times((1 << 20) + 2) != times(1 << 20)


def test_a_schedule_of_the_user_is_named_as_such(pair: ropewalk.Communicator) -> None:
    text = schedule.make("all_reduce", "ring", 2)
    pair.use_schedule(text)
    found = pair.explain("all_reduce", 1 << 10)
    assert (found["chosen"], found["chosen_by"]) == ("ring", "rwCommUseSchedule")
    assert pair.explain("all_gather", 1 << 10)["chosen_by"] == "cost model"


def test_refused_requests(pair: ropewalk.Communicator) -> None:
    with pytest.raises(ropewalk.ArgumentError, match='unknown "all_the_things"'):
        pair.explain("all_the_things", 8)
    with pytest.raises(ropewalk.ArgumentError, match="root: 7 is outside 0 to 1"):
        pair.explain("broadcast", 8, root=7)


def test_the_command_shows_what_runs(program: Program) -> None:
    done = program("explain", "all_reduce", "-b", "1M", "--ranks", "3", "--json")
    found = json.loads(done.stdout)
    assert found["operation"] == "all_reduce" and found["ranks"] == 3
    table = program("explain", "all_reduce", "-b", "1M", "--ranks", "3").stdout
    assert table.splitlines()[0] == "all_reduce of 1048576 bytes, 3 ranks on 1 host"
    assert all(each["algorithm"] in table for each in found["candidates"])
    assert table.splitlines()[-1] == f"runs: {found['chosen']}, by cost model"


def test_the_setting_and_the_network_show(program: Program) -> None:
    options = ["--set", "ALGORITHM=ring", "--set", "LINKS=network", "--set", "NET=tcp"]
    done = program("explain", "all_reduce", "--ranks", "2", "--json", *options)
    found = json.loads(done.stdout)
    assert [each["algorithm"] for each in found["candidates"]] == ["ring"]
    assert found["chosen_by"] == "setting ALGORITHM"
    assert (found["hosts"], found["network"], found["nic_gbps"]) == (2, "tcp", [])
    assert (found["nic_rule"], found["channel_nics"]) == (None, [])


def test_nics_are_told_with_their_channels_and_shares() -> None:
    def channel(number: int, nic: str, share: float, distance: int = 0) -> dict[str, object]:
        return {"channel": number, "nic": nic, "share": share, "distance": distance}

    two = [channel(0, "eth0", 0.5), channel(1, "eth1", 0.2, 22), channel(2, "eth0", 0.3)]
    words = "eth0 80% (channels 0, 2); eth1 20% (channels 1, at distance 22)"
    assert explain.nics_in_words(two) == words


def test_long_pieces_are_as_the_transport_wishes(program: Program) -> None:
    options = ["--set", "LINKS=network", "--set", "SOCKET_IFNAME==lo", "--set", "ALGORITHM=ring"]
    options += ["--set", "OFI_PROVIDER=tcp;ofi_rxm"]
    for net, length in (("tcp", 128 << 10), ("ofi", 512 << 10)):
        done = program("explain", "all_reduce", "--ranks", "2", "-b", "64M", "--json", *options,
                       "--set", f"NET={net}")  # fmt: skip
        if net == "ofi" and done.returncode != 0:
            pytest.skip(f"no libfabric: {done.stderr.splitlines()[0]}")
        assert json.loads(done.stdout)["candidates"][0]["chunk_bytes"] == length


def test_a_reader_that_has_ended_leaves_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "ropewalk", "explain", "all_reduce", "--ranks", "2"],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_gpus_that_are_not_there_are_an_error(program: Program) -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    done = program("explain", "all_reduce", "--device", "cuda", env=hidden)
    assert done.returncode == 2
    assert "--device cuda: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["everything"], "OP everything: is none of"),
        (["all_reduce", "-b", "many"], '-b "many" is not a size'),
        (["all_reduce", "--ranks", "0"], "--ranks 0: must be positive"),
        (["broadcast", "--root", "2"], "--root 2: is outside 0 to 1"),
        (["all_reduce", "--device", "disk"], "--device disk: is none of host, cuda"),
        (["all_reduce", "--device", "cuda", "--emulate", "dgx1v"], "work on host memory"),
    ],
)
def test_wrong_command_lines(program: Program, arguments: list[str], text: str) -> None:
    done = program("explain", *arguments)
    assert done.returncode == 2
    assert text in done.stderr
