"""libmp's API with GPU memory and streams, and the forms of the stencil that work on GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from gpu_support import need_ranks
from libmp_test import BUILD, ON_GPUS, ROOT, SOURCES, compile_program
from running import run_ranks

need_ranks()


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("case", ON_GPUS)
def test_api(tmp_path: Path, case: str, size: int) -> None:
    program = compile_program(SOURCES / "gpu.c", tmp_path / "gpu")
    outputs = run_ranks([str(program), case], size)
    assert [output.strip() for output in outputs] == [f"{case}: passed"] * size


def test_a_lost_peer_ends_the_streams_waits(tmp_path: Path) -> None:
    program = compile_program(SOURCES / "gpu.c", tmp_path / "gpu")
    outputs = run_ranks([str(program), "lost_peer"], 2)
    assert [output.strip() for output in outputs] == ["lost_peer: passed", ""]


@pytest.fixture(scope="module")
def kernel_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc")
    program = tmp_path_factory.mktemp("libmp_kernel") / "libmp_kernel"
    libraries = [str(BUILD / "ropewalk"), str(BUILD)]
    subprocess.run(
        ["nvcc", "-std=c++17", "-O2", "-arch=native", str(ROOT / "tests/gpu/libmp_kernel.cu")]
        + ["-I", str(ROOT / "include" / "ropewalk" / "compat"), "-o", str(program)]
        + [option for each in libraries for option in ("-L", each, "-Xlinker", f"-rpath,{each}")]
        + ["-lmpcomm", "-lmp", "-lropewalk"],
        check=True,
    )
    return program


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("case", ["messages", "readiness"])
def test_kernels(kernel_program: Path, case: str, size: int) -> None:
    outputs = run_ranks([str(kernel_program), case], size)
    assert [output.strip() for output in outputs] == [f"{case}: passed"] * size


def test_a_lost_peer_ends_the_waits_of_a_kernel(kernel_program: Path) -> None:
    outputs = run_ranks([str(kernel_program), "lost_peer"], 2)
    assert [output.strip() for output in outputs] == ["lost_peer: passed", ""]


@pytest.fixture(scope="module")
def stencil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc")
    program = tmp_path_factory.mktemp("stencil") / "stencil"
    sources = [
        str(ROOT / "examples" / "stencil" / name)
        for name in ("main.cc", "ropewalk_forms.cc", "gpu_forms.cu")
    ]
    subprocess.run(
        ["nvcc", "-std=c++17", "-O2", "-arch=native", "-DSTENCIL_CUDA", *sources]
        + ["-I", str(ROOT / "include"), "-L", str(BUILD), "-lropewalk"]
        + ["-Xlinker", f"-rpath,{BUILD}", "-o", str(program)],
        check=True,
        env=os.environ,
    )
    return program


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(
    "form",
    [
        "stream",
        "stream_batch",
        "kernel",
        "graph",
        "synchronous",
        "kernel --at-once 20",
        "graph --at-once 20",
        "stream_batch --at-once 20",
    ],
)
def test_stencil(stencil: Path, form: str, ranks: int) -> None:
    options = ["--form", *form.split(), "--width", "131", "--height", "77", "--iterations", "101"]
    assert run_ranks([str(stencil), *options], ranks)[0].strip().endswith(", right")
