"""`ropewalk train`: its networks, its figures, its errors on bad input, runs of each kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import DEADLINE_SECONDS
from ropewalk.training.figures import Baseline, of_ranks, percentile
from running import free_port

# Parameters and tensors as torchvision publishes them, and DDP's buckets in MiB.
PUBLISHED = {
    "resnet50": (25_557_032, 161, [7.82, 30.04, 25.04, 25.32, 9.27]),
    "efficientnet_b0": (5_288_548, 213, [4.89, 15.29]),
    "mobilenet_v3_large": (5_483_032, 174, [4.89, 16.03]),
}
MIB = 1 << 20
QUICK = ("--device", "cpu", "--batch", "2", "--image", "32", "--steps", "1", "--warmup", "2")


@pytest.fixture(scope="module", autouse=True)
def _torch() -> None:
    """Here rather than at the file's head, which every process of pytest reads."""
    pytest.importorskip("torch.distributed")


def train(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ropewalk", "train", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        env={**os.environ, **environment},
    )


def elsewhere() -> dict[str, str]:
    """The environment for another working directory."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(Path(each).absolute()) for each in given if each]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_and_buckets_are_the_published_ones(name: str) -> None:
    import torch
    from ropewalk.training.models import MODELS

    with torch.device("meta"):
        parameters = list(MODELS[name]().parameters())
    count, tensors, buckets = PUBLISHED[name]
    assert sum(each.numel() for each in parameters) == count
    assert len(parameters) == tensors
    # DDP's own function, with its defaults: 1 MiB for the first, 25 MiB, in reverse.
    ready = [torch.empty(each.shape, device="cpu") for each in reversed(parameters)]
    made = torch.distributed._compute_bucket_assignment_by_size(ready, [MIB, 25 * MIB])[0]
    assert [round(sum(ready[i].numel() * 4 for i in bucket) / MIB, 2) for bucket in made] == buckets


def test_time_in_collectives_is_a_union_and_the_rest_after_the_last_is_exposed() -> None:
    from ropewalk.training.buckets import Buckets

    noted = Buckets("cpu")
    noted._spans = [[1.0, 3.0], [2.0, 4.0], [6.0, 9.0]]
    assert noted.figures() == (6.0, 3.0)
    noted._spans = [[1.0, 9.0], [2.0, 4.0]]  # the first ends last
    assert noted.figures() == (8.0, 7.0)
    noted.begin()
    assert noted.figures() == (0.0, 0.0)


def test_figures_are_those_of_the_slowest_rank() -> None:
    def rank(times: list[float], digest: float) -> dict[str, Any]:
        return {"times": times, "collectives": times, "exposed": times, "digest": [digest]}

    found = of_ranks(
        [[rank([1, 5, 3], 7), rank([2, 4, 1], 7)]], 8, Baseline(0.75, 1.5), together=True
    )
    assert (found.batch_median, found.batch_p95) == (3, 5)
    assert found.collectives_least == found.exposed_least == 1
    assert found.images_per_second == 16 / 3
    assert found.efficiency == 0.25
    assert found.efficiency_of_communication == 0.5
    assert found.consistent
    assert not of_ranks([[rank([1], 7), rank([1], 8)]], 8, None, together=True).consistent
    assert percentile(list(range(1, 101)), 0.95) == 95


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "alexnet"), '--model "alexnet" is none of resnet50'),
        (("--model", "resnet50,resnet50"), "named twice"),
        (("--backend", "mpi"), '--backend "mpi" is none of ropewalk'),
        (("--backend", "gloo,gloo"), "named twice"),
        (("--backend", "nccl"), "NCCL works on GPUs only"),
        (("--backend", "gloo:NET=tcp"), "settings are Ropewalk's"),
        (("--steps", "0"), "--steps 0: must be 1 or more"),
        (("--ranks", "0"), "--ranks 0: must be 1 to 4096"),
        (("--batch", "1"), "cannot be normalized"),
        (("--precision", "int8"), '--precision "int8" is none of'),
        (("--plot", "run.jpeg"), "must end in .svg, .png or .pdf"),
        (("-J", "/nowhere/run.json"), "/nowhere/run.json: No such file or directory"),
    ],
)
def test_bad_input_is_told(arguments: tuple[str, ...], said: str) -> None:
    done = train(*QUICK, *arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_two_local_ranks_over_two_backends(tmp_path: Path) -> None:
    path, chart = tmp_path / "run.json", tmp_path / "run.svg"
    done = train(*QUICK, "--model", "mobilenet_v3_large", "-J", str(path), "--plot", str(chart))
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        f"ropewalk: mobilenet_v3_large over {each}"
        for each in ("one rank", "none", "ropewalk", "gloo")
    ]
    (result,) = json.loads(path.read_text())["results"]
    assert result["parameters"] == PUBLISHED["mobilenet_v3_large"][0]
    sizes = [round(each / MIB, 2) for each in result["bucket_bytes"]]
    assert sizes == PUBLISHED["mobilenet_v3_large"][2]  # as DDP has them, after its rebuild
    for each in result["backends"].values():
        assert each["consistent"]
        assert 0 < each["exposed"] <= each["collectives"]
        assert each["exposed"] < each["batch_median"]
        assert each["efficiency"] == result["one_rank"] / each["batch_median"]
    assert result["one_rank"] > 0
    assert "without communication" in chart.read_text()
    assert "one rank alone" in chart.read_text()
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["(one", "rank)"] in [row[1:3] for row in rows]


@pytest.mark.thorough
def test_ranks_of_a_launcher_and_a_setting(tmp_path: Path) -> None:
    port = str(free_port())
    started = []
    for rank in range(2):
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_WORLD_SIZE": "2"}
        started.append(
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "ropewalk", "train", *QUICK),
                    *("--model", "mobilenet_v3_large", "--backend", "ropewalk:NET=tcp"),
                ],
                env={**os.environ, **place},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [each.communicate(timeout=DEADLINE_SECONDS) for each in started]
    assert [each.returncode for each in started] == [0, 0], said
    assert "ropewalk:NET=tcp" in said[0][0]
    assert said[1] == ("", "")  # one table


@pytest.mark.thorough
def test_a_training_run_is_traced_with_its_collectives(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ropewalk"]
    training = [*command, "train", *QUICK, "--model", "mobilenet_v3_large", "--backend", "ropewalk"]
    done = subprocess.run(
        [*command, "trace", "-o", "run.json", "--plot", "run.svg", "--", *training],
        cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False,
        env=elsewhere(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "run.svg"]
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    calls = [event for event in events if event["ph"] == "X" and event["name"] == "all_reduce"]
    steps, buckets = 3, len(PUBLISHED["mobilenet_v3_large"][2])
    for rank in range(2):
        mine = [event for event in calls if event["pid"] == rank]
        assert len(mine) >= (steps - 1) * buckets
        assert all(event["dur"] > 0 for event in mine)
    assert "share of the time in collectives" in (tmp_path / "run.svg").read_text()


@pytest.mark.thorough
def test_a_rank_that_fails_ends_the_run() -> None:
    done = train(*QUICK, "--model", "mobilenet_v3_large", "--backend", "ropewalk:NET=nonsense")
    assert done.returncode == 3
    assert "mobilenet_v3_large over ropewalk:NET=nonsense: rank" in done.stderr
    assert "Traceback" not in done.stderr
