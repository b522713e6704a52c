"""Kernels that are compiled against NVIDIA's device header, and PyTorch's symmetric memory on NCCL,
on Ropewalk's libnccl.so.2.

The headers are those of the environment's NCCL, and those of the folders that RW_NCCL_INCLUDES
names (a list as PATH), each of which has nccl.h and nccl_device.h of some version.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import launcher
import pytest

HERE = Path(__file__).resolve().parent


pytestmark = [
    pytest.mark.skipif(launcher.gpus() == 0, reason="there is no NVIDIA GPU"),
    pytest.mark.skipif(not launcher.library().exists(), reason="libnccl.so.2 was not built"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]


@functools.cache
def includes() -> tuple[Path, ...]:
    folders = [Path(named) for named in os.environ.get("RW_NCCL_INCLUDES", "").split(os.pathsep)]
    found = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    if found is not None:
        folders += [Path(place) / "include" for place in found.submodule_search_locations or []]
    return tuple(folder for folder in folders if (folder / "nccl_device.h").is_file())


def compiled(to: Path) -> list[str]:
    """A library for each header."""
    compiler = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if compiler is None:
        pytest.skip("there is no nvcc")
    if not includes():
        pytest.skip("no NCCL with nccl_device.h is installed, and RW_NCCL_INCLUDES names none")
    made = []
    for number, include in enumerate(includes()):
        library = to / f"device_api_{number}.so"
        command = [compiler, "-O2", "-std=c++17", "--extended-lambda", "-arch=native", "-shared"]
        command += ["-Xcompiler", "-fPIC", "-I", str(include), "-o", str(library)]
        done = subprocess.run(
            [*command, str(HERE / "device_api.cu")],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{include}:\n{done.stdout}{done.stderr}"
        made.append(str(library))
    return made


def run(ranks: int, script: str, *arguments: str) -> list[str]:
    ended = launcher.run(ranks, script, *arguments, limit_s=180)
    for one in ended:
        assert one.status == 0, f"rank {one.rank}:\n{one.output}"
        assert "all done" in one.output
    print(f"rank 0:\n{ended[0].output}")
    return [one.output for one in ended]


@pytest.mark.parametrize("ranks", sorted({1, launcher.gpus()}))
def test_kernels_take_part(ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_MEM_ALLOC", "pages")
    libraries = compiled(tmp_path)
    for said in run(ranks, "device_api_rank.py", *libraries):
        assert len(re.findall(r"^header \d+: ok: ", said, re.M)) == len(libraries)


def test_without_pages_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROPEWALK_MEM_ALLOC", raising=False)
    monkeypatch.delenv("TORCH_SYMMMEM", raising=False)
    run(launcher.gpus(), "device_api_rank.py", "refused")


@pytest.mark.skipif(launcher.gpus() < 2, reason="needs 2 GPUs")
@pytest.mark.parametrize("chosen", ["environment", "set_backend"])
def test_torchs_symmetric_memory(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By PyTorch's variable without more, or by its function with the setting."""
    monkeypatch.delenv("TORCH_SYMMMEM", raising=False)
    monkeypatch.delenv("ROPEWALK_MEM_ALLOC", raising=False)
    if chosen == "environment":
        monkeypatch.setenv("TORCH_SYMMMEM", "NCCL")
    else:
        monkeypatch.setenv("ROPEWALK_MEM_ALLOC", "pages")
    for said in run(launcher.gpus(), "symmetric_memory_torch.py", chosen):
        for name in ("rendezvous", "get_buffer", "one_shot_all_reduce", "two_shot_all_reduce_"):
            assert f"ok: {name}\n" in said, said
