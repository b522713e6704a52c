"""The devices and CPUs of a rank, and `ropewalk topo` and `ropewalk bind` as programs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Optional

import pytest
import ropewalk
from conftest import Program
from ropewalk import placement, topology

MACHINES = Path(__file__).parent.parent / "topologies"
GOLDEN = Path(__file__).parent / "golden"
DGX = MACHINES / "nccl" / "dgx-a100.xml"
EVERY_CPU = set(range(256))
MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
}


def choose(rank: int, size: int, **options: object) -> placement.Choice:
    arguments = {"environment": {}, "usable_cpus": EVERY_CPU, **options}
    return placement.choose(topology.read(DGX), rank, size, **arguments)  # type: ignore[arg-type]


def test_each_rank_gets_the_resources_next_to_its_gpu() -> None:
    choice = choose(2, 8)
    assert (choice.gpu, choice.device, choice.numa) == ("gpu2", 2, 1)
    assert (choice.nic, choice.nic_path) == ("mlx5_2", "PIX")
    assert placement.cpu_ranges(choice.cpus) == "16-31,144-159"
    assert choice.words() == (
        "GPU 2 (sm_80, 0000:47:00.0), CPUs 16-31,144-159, NUMA 1, NIC mlx5_2 (PIX)"
    )


def test_cpus_can_be_shared_out() -> None:
    first, second = choose(2, 8, share_cpus=True), choose(3, 8, share_cpus=True)
    assert placement.cpu_ranges(first.cpus) == "16-31"
    assert placement.cpu_ranges(second.cpus) == "144-159"
    few = [choose(rank, 8, share_cpus=True, usable_cpus={16}).cpus for rank in (2, 3)]
    assert few == [{16}, {16}]


def test_only_cpus_that_the_process_may_use() -> None:
    assert choose(0, 8, usable_cpus={48, 49, 200}).cpus == {48, 49}
    none = choose(0, 8, usable_cpus={0})
    assert none.cpus == set()
    assert none.notes == [
        "none of the CPUs 48-63,176-191 may be used by this process: left as it is"
    ]


def test_visible_devices_of_somebody_else_are_respected() -> None:
    choice = choose(1, 2, environment={"CUDA_VISIBLE_DEVICES": "6,7"})
    assert (choice.gpu_words, choice.device, choice.nic) == (
        "sm_80, 0000:bd:00.0", 1, "mlx5_7",
    )  # fmt: skip
    assert choice.notes == ["CUDA_VISIBLE_DEVICES=6,7: 2 of 8 GPUs"]
    for odd in ("GPU-d1dc229d", "77"):
        choice = choose(1, 2, environment={"CUDA_VISIBLE_DEVICES": odd})
        assert (choice.gpu, choice.device) == ("gpu1", 1)
        assert "taken for all" in choice.notes[0]


def test_more_ranks_than_gpus_take_turns() -> None:
    choice = choose(9, 16)
    assert (choice.gpu, choice.device) == ("gpu1", 1)
    assert choice.notes == ["16 ranks share 8 GPUs"]


def test_memory_of_a_node_that_is_not_there() -> None:
    with pytest.raises(OSError):
        placement.set_memory_policy(1000, strict=True)


def test_bind_runs_the_program_bound(program: Program) -> None:
    here = min(os.sched_getaffinity(0))
    script = (
        "import os; print(sorted(os.sched_getaffinity(0)), os.environ['LOCAL_RANK'],"
        " os.environ['CUDA_DEVICE_ORDER'], repr(os.environ.get('CUDA_VISIBLE_DEVICES')))"
    )
    # What the user chose is left alone.
    environment = {**MPI, "CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "7,3"}
    done = program("bind", "--cpus", "share", "--", "python3", "-c", script, env=environment)
    assert done.returncode == 0, done.stderr
    cpus, rest = done.stdout.strip().split("] ")
    assert len(json.loads(cpus + "]")) >= 1
    assert here >= 0
    assert rest == "3 FASTEST_FIRST '7,3'"
    assert "ropewalk: local rank 3 of 8: " in done.stderr


def test_bind_says_what_it_would_do(program: Program) -> None:
    done = program("bind", "--from", str(DGX), "--dry-run", env=MPI)
    assert done.returncode == 0
    assert done.stdout == ""
    assert "local rank 3 of 8: GPU 3 (sm_80, 0000:4e:00.0)" in done.stderr
    assert "NIC mlx5_3 (PIX), memory preferably of NUMA 1" in done.stderr


def test_bind_names_the_nic_in_a_variable(program: Program) -> None:
    done = program(
        "bind", "--from", str(DGX), "--cpus", "none", "--memory", "none", "--quiet",
        "--nic-env", "NCCL_IB_HCA", "--", "sh", "-c", "echo $NCCL_IB_HCA; exit 7", env=MPI,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (7, "mlx5_3\n", "")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "bind: what to run?"),
        (["--local-rank", "4", "--local-size", "4", "--", "true"], 2, "local rank 4 is not one"),
        (["--cpus", "all", "--", "true"], 2, "--cpus all: node, share or none"),
        (["--", "/nobody/home"], 3, "/nobody/home: No such file"),
    ],
)
def test_bind_refuses(program: Program, arguments: list[str], status: int, message: str) -> None:
    done = program("bind", *arguments)
    assert done.returncode == status
    assert message in done.stderr


def test_topo_shows_every_form(program: Program, tmp_path: Path) -> None:
    source = ["--from", str(MACHINES / "dgx-a100-x2.json")]
    shown = program("topo", *source, "--tree")
    assert shown.stdout == (GOLDEN / "topo-tree-dgx-a100-x2.txt").read_text()
    written = program("topo", *source, "--nccl-xml", "--host", "1", "-o", str(tmp_path / "x.xml"))
    assert "ropewalk: bus ids are invented" in written.stderr
    again = program("topo", "--from", str(tmp_path / "x.xml"), "--json")
    assert len(json.loads(again.stdout)["nodes"]) == 8 + 8 + 4 + 2 + 1
    assert program("topo", "--synthetic", "dgx2", "--svg").stdout.startswith("<svg ")
    here = program("topo")
    assert here.returncode == 0
    assert "Legend:" in here.stdout or "neither GPU nor NIC" in here.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "/nobody/home.xml"], "/nobody/home.xml: No such file"),
        (["--synthetic", "8gpu rope"], "column 6: unknown word"),
        (["--synthetic", "8gpu", "--from", "x"], "one of them"),
        (["--synthetic", "8gpu", "--json", "--svg"], "one of them"),
        (["--synthetic", "8gpu", "--gpus", "a"], '--gpus "a" is not a list'),
        (["--synthetic", "8gpu", "--gpus", "0-8"], "no GPU 8: synthetic has 8 GPUs, 0 to 7"),
        (["--synthetic", "8gpu", "--host", "1"], "host 1: synthetic has 1 hosts"),
        (["--synthetic", "8gpu", "--hosts", "2"], "no NIC to join hosts by"),
    ],
)
def test_topo_refuses(program: Program, arguments: list[str], message: str) -> None:
    done = program("topo", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"SLURM_LOCALID": "2", "SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, (2, None)),
        ({"SLURM_LOCALID": "2", "SLURM_NTASKS": "4", "SLURM_NNODES": "1"}, (2, 4)),
        ({"SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "8"}, (1, 8)),
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}, (3, 8)),
        ({}, (None, None)),
    ],
)
def test_a_rank_without_a_job_is_that_rank(
    monkeypatch: pytest.MonkeyPatch,
    told: dict[str, str],
    expected: tuple[Optional[int], Optional[int]],
) -> None:
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert placement.local_rank() == expected


@pytest.mark.parametrize("name", ["LOCAL_RANK", "SLURM_LOCALID"])
def test_a_rank_that_is_no_number_is_refused(program: Program, name: str) -> None:
    done = program("bind", "--dry-run", env={name: "abc"})
    assert done.returncode == 2
    assert f'{name}="abc" is not a number' in done.stderr


def test_gaps_in_a_file_are_reported(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "x.xml"
    made = program("topo", "--synthetic", "2gpu nvswitch", "--nccl-xml").stdout
    speed = re.search('link_speed="[^"]*"', made)
    assert speed is not None
    file.write_text(made.replace(speed.group(), 'link_speed="banana"', 1))
    for arguments in (["topo", "--from", str(file)], ["plan", str(file), "all_reduce"]):
        done = program(*arguments)
        assert done.returncode == 0
        assert re.search('line [0-9]+: link_speed "banana" is not a speed of PCIe', done.stderr)


def test_launcher_without_a_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_RANK", "1")
    monkeypatch.setenv("ROPEWALK_WORLD_SIZE", "2")
    with pytest.raises(ropewalk.UsageError, match="give --local-rank"):
        placement.local_rank()
