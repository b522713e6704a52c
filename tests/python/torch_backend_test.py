"""`torch.distributed` over Ropewalk on the CPU, in processes; skipped without PyTorch."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed")

FOLDER = Path(__file__).parent


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
    "case", ["timeouts", "the_settings_timeout", "joining_late", "monitored_barriers"]
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
        ("saved_asynchronously", 2),
        ("compiled", 2),
        ("profiled", 2),
        ("again_and_again", 2),
    ],
)
def test_features(server: Server, case: str, ranks: int) -> None:
    server.run(case, ranks)


@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_torchrun_starts_ranks_again(tmp_path: Path, rendezvous: str) -> None:
    """In the second attempt the store still has what the first one left there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {
        "static": ["--master-addr=127.0.0.1", f"--master-port={port}"],
        "c10d": ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"],
    }[rendezvous]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
            *("--max-restarts=1", "--monitor-interval=0.1", *place),
            *(str(FOLDER / "restarted_rank.py"), str(tmp_path)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.0", "1.1"]


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
