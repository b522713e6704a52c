"""libmp's API and the COMM layer, by programs that are compiled as libmp's are.

tests/libmp has the programs. They run under torchrun's variables, and under mpirun where there is
an MPI that starts programs; over shared memory, and as if each rank were on a host of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from launchers_test import LAUNCHERS, works
from running import run_ranks
from thorough import thorough_but

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("RW_BUILD_DIR", "build/release")
SOURCES = ROOT / "tests" / "libmp"

pytestmark = pytest.mark.skipif(
    not (BUILD / "ropewalk" / "libmp.so").exists(), reason="libmp.so is not built"
)

CASES = (
    *("beginnings", "version", "messages", "order", "vectors", "streams", "prepared", "windows"),
    *("words", "inline_words", "refused", "across_a_collective", "while_it_computes"),
)
MPI = {"mpirun": "mpicc", "mpiexec.mpich": "mpicc.mpich"}


def compile_program(source: Path, program: Path, compiler: str = "cc") -> Path:
    """Against the build folder, with libmp's own include and link names."""
    libraries = [str(BUILD / "ropewalk"), str(BUILD)]
    subprocess.run(
        [compiler, "-O1", "-g", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(program)]
        + ["-I", str(ROOT / "include" / "ropewalk" / "compat"), "-I", str(ROOT / "include")]
        + [option for each in libraries for option in ("-L", each, f"-Wl,-rpath,{each}")]
        + ["-lmpcomm", "-lmp", "-lropewalk"],
        check=True,
    )
    return program


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libmp")
    for name in ("api", "comm"):
        compile_program(SOURCES / f"{name}.c", folder / name)
    for name in ("kernel", "comm_kernel"):
        compile_program(SOURCES / f"{name}.cc", folder / name, "c++")
    return folder


def expect_passed(command: list[str], size: int, extra: dict[str, str] | None = None) -> None:
    for output in run_ranks(command, size, extra):
        assert output.strip().endswith(": passed"), output


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_api(programs: Path, case: str, size: int) -> None:
    expect_passed([str(programs / "api"), case], size)


@pytest.mark.parametrize("case", ["messages", "order", "streams", "prepared", "windows", "refused"])
def test_api_between_hosts(programs: Path, case: str) -> None:
    hosts = [{"ROPEWALK_HOST_ID": f"host{rank}", "ROPEWALK_NET": "tcp"} for rank in range(2)]
    outputs = run_ranks([str(programs / "api"), case], 2, by_rank=hosts)
    assert all(output.strip().endswith(": passed") for output in outputs), outputs


@pytest.mark.parametrize("case", ["lost_peer", "without_the_end"])
def test_a_lost_peer_ends_the_waits(programs: Path, case: str) -> None:
    outputs = run_ranks([str(programs / "api"), case], 3)
    assert [output.strip() for output in outputs] == [f"{case}: passed"] * 2 + [""]


def test_a_deadline_ends_a_wait(programs: Path) -> None:
    expect_passed([str(programs / "api"), "deadline"], 2, {"ROPEWALK_TIMEOUT": "2s"})


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("case", ["readiness", "streams", "requests"])
def test_comm(programs: Path, case: str, size: int) -> None:
    expect_passed([str(programs / "comm"), case], size)


KERNEL_CASES = (
    *("messages", "many", "puts", "order", "words", "released_in_order", "used_twice", "refused"),
    "truncated",
)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("case", KERNEL_CASES)
def test_kernels(programs: Path, case: str, size: int) -> None:
    expect_passed([str(programs / "kernel"), case], size)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("case", ["exchange", "readiness", "limits", "refused"])
def test_comm_for_kernels(programs: Path, case: str, size: int) -> None:
    expect_passed([str(programs / "comm_kernel"), case], size)


@pytest.mark.parametrize(
    ("program", "case"),
    [("kernel", "messages"), ("kernel", "puts"), ("kernel", "words"), ("comm_kernel", "exchange")],
)
def test_kernels_between_hosts(programs: Path, program: str, case: str) -> None:
    hosts = [{"ROPEWALK_HOST_ID": f"host{rank}", "ROPEWALK_NET": "tcp"} for rank in range(2)]
    outputs = run_ranks([str(programs / program), case], 2, by_rank=hosts)
    assert all(output.strip().endswith(": passed") for output in outputs), outputs


@pytest.mark.parametrize(
    ("program", "case"),
    [("kernel", "lost_peer"), ("kernel", "lost_peer_and_a_word"), ("comm_kernel", "lost_peer")],
)
@pytest.mark.parametrize("size", [2, 3])
def test_a_lost_peer_ends_the_waits_of_kernels(
    programs: Path, program: str, case: str, size: int
) -> None:
    outputs = run_ranks([str(programs / program), case], size, {"ROPEWALK_TIMEOUT": "50s"})
    assert [output.strip() for output in outputs] == [f"{case}: passed"] * (size - 1) + [""]


def test_a_deadline_ends_a_wait_of_a_kernel(programs: Path) -> None:
    expect_passed([str(programs / "kernel"), "deadline"], 2, {"ROPEWALK_TIMEOUT": "1s"})


STAND_IN = BUILD / "tests" / "stand_in_cuda.dir"
ON_GPUS = ("messages", "streams", "words", "windows", "many")


@pytest.mark.skipif(not STAND_IN.exists(), reason="the stand-in for CUDA's driver is not built")
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("case", [*ON_GPUS, "lost_peer"])
def test_gpu_memory_and_streams_by_a_stand_in(tmp_path: Path, case: str, size: int) -> None:
    program = compile_program(SOURCES / "gpu.c", tmp_path / "gpu")
    driver = {"LD_LIBRARY_PATH": str(STAND_IN), "RW_STAND_IN_CUDA": "gpus=2"}
    if case != "lost_peer":
        expect_passed([str(program), case], size, driver)
    elif size > 1:
        outputs = run_ranks([str(program), case], size, driver)
        assert [output.strip() for output in outputs] == [f"{case}: passed"] * (size - 1) + [""]


@pytest.mark.skipif(not STAND_IN.exists(), reason="the stand-in for CUDA's driver is not built")
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("program", "case"),
    [
        *(("kernel", case) for case in KERNEL_CASES if case != "refused"),
        ("comm_kernel", "exchange"),
    ],
)
def test_words_of_kernels_in_pinned_memory(
    programs: Path, program: str, case: str, size: int
) -> None:
    driver = {"LD_LIBRARY_PATH": str(STAND_IN), "RW_STAND_IN_CUDA": "gpus=2", "TEST_GPU": "0"}
    expect_passed([str(programs / program), case], size, driver)


@pytest.mark.parametrize("launcher", thorough_but(MPI, "mpirun"))
def test_mpi_starts_them(launcher: str, tmp_path: Path) -> None:
    if shutil.which(MPI[launcher]) is None or not works(launcher):
        pytest.skip(f"{launcher} does not start programs here")
    cxx = MPI[launcher].replace("mpicc", "mpicxx")
    for source, case, compiler in (
        ("api.c", "beginnings", MPI[launcher]),
        ("api.c", "windows", MPI[launcher]),
        ("comm.c", "readiness", MPI[launcher]),
        ("comm_kernel.cc", "exchange", cxx),
    ):
        program = compile_program(SOURCES / source, tmp_path / "program", compiler)
        done = subprocess.run(
            [*LAUNCHERS[launcher], str(program), case],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"{case}: passed"] * 2, done.stdout


EXAMPLES = ROOT / "examples" / "mp"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_put_example(tmp_path: Path, size: int) -> None:
    program = compile_program(EXAMPLES / "putget.c", tmp_path / "putget")
    assert [output.strip() for output in run_ranks([str(program)], size)] == [
        f"rank {rank} of {size}: from rank {(rank - 1) % size}, "
        f"and rank 0 has {1000 * ((size - 1) % size) + 30}"
        for rank in range(size)
    ]


def expect_sizes(output: str, most: int = 32768) -> None:
    lines = output.strip().splitlines()
    sizes = [size for size in (8, 64, 512, 4096, 32768) if size <= most]
    assert [int(line.split()[0]) for line in lines] == sizes, output
    assert all(float(line.split()[2]) > 0 for line in lines)


def test_the_message_example(tmp_path: Path) -> None:
    program = compile_program(EXAMPLES / "pingpong.c", tmp_path / "pingpong")
    expect_sizes(run_ranks([str(program)], 2)[0])


def test_the_kernel_example(tmp_path: Path) -> None:
    program = compile_program(EXAMPLES / "kernel.cc", tmp_path / "kernel", "c++")
    expect_sizes(run_ranks([str(program)], 2)[0], 4096)


def test_the_examples_build_by_their_makefile_and_run_under_mpi(tmp_path: Path) -> None:
    if shutil.which("mpicc") is None or not works("mpirun"):
        pytest.skip("no MPI that starts programs")
    prefix = tmp_path / "prefix"
    subprocess.run(
        ["cmake", "--install", str(BUILD), "--prefix", str(prefix)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    shutil.copytree(EXAMPLES, tmp_path / "mp")
    described = next(prefix.rglob("ropewalk.pc")).parent
    subprocess.run(
        ["make", "-C", str(tmp_path / "mp"), "CC=mpicc"],
        env=os.environ | {"PKG_CONFIG_PATH": str(described)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    environment = os.environ | {"LD_LIBRARY_PATH": str(described.parent)}
    for name in ("putget", "pingpong", "kernel"):
        done = subprocess.run(
            [*LAUNCHERS["mpirun"], str(tmp_path / "mp" / name)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == {"putget": 2, "pingpong": 5, "kernel": 4}[name]
