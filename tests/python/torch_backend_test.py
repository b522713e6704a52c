"""`torch.distributed` over Ropewalk on the CPU, in processes; skipped without PyTorch."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from importlib import metadata
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def _torch() -> None:
    """Here rather than at the file's head, which every process of pytest reads."""
    pytest.importorskip("torch.distributed")


class Server:
    """Has imported PyTorch, and forks the ranks of each case."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(FOLDER / "process_group_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, case: str, ranks: int = 2, killed: int = -1) -> None:
        """Runs `case` of process_group_rank.py, in which the rank `killed` kills itself."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{case} {ranks}\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        wanted = [-signal.SIGKILL if rank == killed else 0 for rank in range(ranks)]
        assert answer["statuses"] == wanted, "\n".join(
            f"--- rank {rank}: {status}\n{said}"
            for rank, (status, said) in enumerate(zip(answer["statuses"], answer["said"]))
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.mark.parametrize("case", ["operations", "point_to_point", "training", "errors"])
def test_cpu(server: Server, case: str) -> None:
    server.run(case)


@pytest.mark.parametrize(
    "case",
    [
        "lost_in_backward",
        "lost_in_sparse_backward",
        "lost_in_hook",
        "lost_by_future",
        "lost_before_first_message",
    ],
)
def test_rank_is_lost(server: Server, case: str) -> None:
    server.run(case, killed=1)


def test_errors_name_ranks_of_the_whole_job(server: Server) -> None:
    server.run("lost_in_group", ranks=3, killed=2)


@pytest.mark.parametrize(
    "case",
    [
        "timeouts",
        "timeouts_set_later",
        "the_settings_timeout",
        "joining_late",
        "monitored_barriers",
    ],
)
def test_rank_is_late(server: Server, case: str) -> None:
    server.run(case)


@pytest.mark.parametrize(
    ("case", "ranks"),
    [
        ("callbacks_that_wait", 2),
        ("futures_in_order", 2),
        ("power_sgd", 2),
        ("uneven_inputs", 2),
        ("held_by_cpp_alone", 2),
        ("many_tags", 2),
        ("messages_of_tags", 2),
        ("from_any_source", 3),
        ("bits", 3),
        ("sparse", 3),
        ("backends", 2),
        ("plans_of_a_machine", 8),
        ("saved_asynchronously", 2),
        ("compiled", 2),
        ("profiled", 2),
        ("profiled_as_gloos", 2),
        ("again_and_again", 2),
    ],
)
def test_features(server: Server, case: str, ranks: int) -> None:
    server.run(case, ranks)


@pytest.mark.parametrize(
    ("case", "ranks"),
    [
        ("functional_collectives", 2),
        ("functional_of_other_groups", 2),
        ("compiled_operations", 2),
        ("compiled_messages", 2),
        ("compiled_training", 2),
        ("meshes", 4),
        ("sharded", 2),
        ("pipelines", 2),
    ],
)
def test_parallelism(server: Server, case: str, ranks: int) -> None:
    server.run(case, ranks)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs g++")
def test_inductor(server: Server) -> None:
    server.run("inductor")


def test_ranks_start_again(tmp_path: Path) -> None:
    """In later attempts the store, or the file, still has what earlier ones left there."""
    kinds = ["static", "standalone", "c10d", "c10d over a file", "file://"]
    _restarted([], tmp_path, 5, kinds)


@pytest.mark.parametrize("late", ["set", "deleted"])
def test_messages_of_a_killed_rank_arrive_late(late: str) -> None:
    """At the store, after the next rank 0 has announced its attempt to join."""
    import torch.distributed as dist
    from ropewalk.torch_joining import Meeting

    store = dist.HashStore()
    with concurrent.futures.ThreadPoolExecutor(2) as ranks:
        first = ranks.submit(Meeting(store, "all", 0, 2).join, 60.0)
        deadline = time.monotonic() + 60
        while not store.check(["ropewalk/all"]) and time.monotonic() < deadline:
            time.sleep(0.001)
        if late == "set":
            store.set("ropewalk/all", "0" * 32)
        else:
            store.delete_key("ropewalk/all")
        second = ranks.submit(Meeting(store, "all", 1, 2).join, 60.0)
        comms = [first.result(), second.result()]
        list(ranks.map(lambda comm: comm.finalize(), comms))


@pytest.mark.thorough
def test_torchrun_starts_ranks_again(tmp_path: Path) -> None:
    torchrun = [
        *("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"),
        *("--max-restarts=1", "--monitor-interval=0.1"),
    ]
    _restarted(torchrun, tmp_path, 1, ["standalone"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ended.1.0", "ended.1.1"]


def _restarted(launcher: list[str], folder: Path, restarts: int, kinds: list[str]) -> None:
    program = [str(FOLDER / "restarted_rank.py"), str(folder), str(restarts), *kinds]
    done = subprocess.run(
        [sys.executable, *launcher, *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout


def test_without_an_import() -> None:
    """PyTorch knows the backend by an entry point of the installed package."""
    known = metadata.entry_points(group="torch.backends") if sys.version_info >= (3, 10) else ()
    if not any(entry.name == "ropewalk" for entry in known):
        pytest.skip("the package is not installed")
    program = (
        "import torch, torch.distributed as dist, sys\n"
        "assert 'ropewalk.torch_backend' not in sys.modules\n"
        "dist.init_process_group('ropewalk', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(1))\n"
        "dist.destroy_process_group()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
