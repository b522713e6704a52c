"""Programs that were written for NCCL, on Ropewalk's libnccl.so.2 and this machine's GPUs.

`make test-gpu` runs them; a plain test run leaves this folder out.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import launcher
import pytest

pytestmark = [
    pytest.mark.skipif(launcher.gpus() == 0, reason="there is no NVIDIA GPU"),
    pytest.mark.skipif(not launcher.library().exists(), reason="libnccl.so.2 was not built"),
]
needs_two = pytest.mark.skipif(launcher.gpus() < 2, reason="needs 2 GPUs")


def needs(package: str) -> pytest.MarkDecorator:
    there = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not there, reason=f"{package} is not installed")


def run(
    ranks: int, script: str, *arguments: str, may_fail: tuple[int, ...] = (), hosts: int = 1
) -> None:
    for ended in launcher.run(ranks, script, *arguments, hosts=hosts):
        if ended.rank not in may_fail:
            assert ended.status == 0, f"rank {ended.rank}:\n{ended.output}"
            assert "all done" in ended.output


@needs("torch")
def test_all_gpus_in_one_thread() -> None:
    run(1, "api_one_thread.py")


@needs("torch")
@pytest.mark.parametrize("disabled", ["0", "1"])
def test_what_came_after_2_28(disabled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", disabled)
    run(3, "api_later.py")


@needs("torch")
@needs_two
@pytest.mark.parametrize("memory", ["cudaMalloc", "pages"])
@pytest.mark.parametrize("blocking", ["blocking", "non-blocking"])
def test_windows_of_processes(blocking: str, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_MEM_ALLOC", memory)
    run(2, "api_windows.py", blocking)


@needs("torch")
@pytest.mark.parametrize("memory", ["cudaMalloc", "pages"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_put_signal(hosts: int, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_MEM_ALLOC", memory)
    # Streams that wait for each other must not share one of the GPU's queues.
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    run(2, "api_messages.py", hosts=hosts)


@needs("torch")
@needs_two
def test_pages_in_windows_are_read_directly_where_other_memory_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NCCL_DEBUG_SUBSYS", "COLL,P2P,ALLOC")
    said = {}
    for memory in ("cudaMalloc", "pages"):
        monkeypatch.setenv("ROPEWALK_MEM_ALLOC", memory)
        ended = launcher.run(2, "api_windows.py", "blocking")
        assert all(one.status == 0 for one in ended), ended
        said[memory] = ["of other processes may read them" in one.output for one in ended]
        # Afterwards a window is refused that another rank cannot have.
        windows = ended[0].output.partition("windows: ok")[0]
        assert "is staged for them" not in windows, ended[0].output
    assert said["pages"] == said["cudaMalloc"]


@needs("torch")
@needs_two
def test_a_killed_rank_is_told_and_kernels_end() -> None:
    run(2, "api_kill.py", may_fail=(1,))


@needs("torch")
@pytest.mark.parametrize("part", ["reductions", "movements", "groups", "graph", "storm=10000"])
def test_torch(part: str) -> None:
    run(launcher.gpus(), "nccl_torch_ranks.py", part)


@needs("torch")
def test_torch_with_eager_communicators() -> None:
    run(launcher.gpus(), "nccl_torch_ranks.py", "eager", "groups")


@needs("torch")
def test_training_gives_the_same_bits_and_what_nvidias_library_gives(tmp_path: Path) -> None:
    import torch

    kept = []
    for number, ours in enumerate((True, True, False)):
        target = tmp_path / str(number)
        for ended in launcher.run(launcher.gpus(), "nccl_training.py", str(target), ours=ours):
            assert ended.status == 0, ended.output
        kept.append(torch.load(target))
    assert len(kept[0]) == 8
    for name, value in kept[0].items():
        assert torch.equal(value, kept[1][name]), name
        torch.testing.assert_close(value, kept[2][name], rtol=1e-4, atol=1e-5)


# As many GPUs as there are, on two hosts: 1 + 1, 2 + 1, 2 + 2. Over `auto` kernels write the other
# host's windows, over `tcp` threads move the data.
@needs("torch")
@needs_two
@pytest.mark.parametrize("net", ["auto", "tcp"])
@pytest.mark.parametrize("part", ["reductions", "movements", "groups", "graph", "storm=3000"])
def test_torch_across_hosts(net: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_NET", net)
    run(launcher.gpus(), "nccl_torch_ranks.py", part, hosts=2)


@needs("torch")
@pytest.mark.skipif(launcher.gpus() < 3, reason="needs 3 GPUs")
@pytest.mark.parametrize("net", ["auto", "tcp"])
def test_torch_across_unequal_hosts(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_NET", net)
    run(3, "nccl_torch_ranks.py", "reductions", "movements", hosts=2)


@needs("torch")
@needs_two
def test_operations_over_a_late_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 mixed operations; none may be wrong or hang."""
    monkeypatch.setenv("ROPEWALK_NET", "tcp")
    monkeypatch.setenv("ROPEWALK_FAULTY", "delay=50us,reorder=0.05,seed=5")
    run(launcher.gpus(), "nccl_torch_ranks.py", "storm=10000", hosts=2)


@needs("torch")
@needs_two
@pytest.mark.parametrize("faults", ["fail=0.0005,seed=1", "drop=0.0005,seed=2"])
def test_operations_over_a_failing_transport_end_by_name(
    faults: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROPEWALK_NET", "tcp")
    monkeypatch.setenv("ROPEWALK_FAULTY", faults)
    monkeypatch.setenv("ROPEWALK_TIMEOUT", "10s")
    for ended in launcher.run(launcher.gpus(), "nccl_torch_ranks.py", "storm=10000", hosts=2):
        assert ended.status not in (0, None), ended.output
        assert "wrong elements" not in ended.output
        assert "rank" in ended.output, ended.output


@needs("torch")
@needs_two
@pytest.mark.parametrize("net", ["auto", "tcp"])
def test_training_across_hosts_gives_what_one_host_gives(
    net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DDP and FSDP. Sums of two ranks are the same in any order; of more they may differ."""
    import torch

    monkeypatch.setenv("ROPEWALK_NET", net)
    kept = []
    for hosts in (1, 2):
        target = tmp_path / str(hosts)
        for ended in launcher.run(launcher.gpus(), "nccl_training.py", str(target), hosts=hosts):
            assert ended.status == 0, ended.output
        kept.append(torch.load(target))
    for name, value in kept[0].items():
        if launcher.gpus() == 2:
            assert torch.equal(value, kept[1][name]), name
        torch.testing.assert_close(value, kept[1][name], rtol=1e-4, atol=1e-5)


@needs("cupy")
def test_cupy() -> None:
    run(1, "cupy_nccl.py")


@needs("jax")
def test_jax() -> None:
    run(1, "jax_pmap.py")


@needs("cupy")
@needs_two
@pytest.mark.parametrize("net", ["auto", "tcp"])
def test_cupy_across_hosts(net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_NET", net)
    run(launcher.gpus(), "cupy_ranks.py", str(tmp_path / "id"), hosts=2)


@needs("jax")
@needs_two
@pytest.mark.parametrize("net", ["auto", "tcp"])
def test_jax_across_hosts(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_NET", net)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    run(launcher.gpus(), "jax_ranks.py", hosts=2)
