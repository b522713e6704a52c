"""The examples run as their first lines say, alone and as two ranks."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Optional

import pytest
from thorough import thorough_but

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_SECONDS = 120


def run_ranks(command: list[str], size: int, extra: Optional[dict[str, str]] = None) -> str:
    """Runs `command` as `size` ranks with torchrun's variables; what rank 0 printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = []
    for rank in range(size):
        environment = {**os.environ, **(extra or {})}
        if size > 1:
            environment |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
        ranks.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [rank.communicate(timeout=DEADLINE_SECONDS) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * size, outputs
    return outputs[0][0]


@pytest.mark.parametrize(
    ("name", "alone", "two"),
    [
        (
            "all_reduce",
            "1 ranks: sum [0.0, 1.0, 2.0, 3.0], max [0.0, 1.0, 2.0, 3.0]",
            "2 ranks: sum [1.0, 3.0, 5.0, 7.0], max [1.0, 2.0, 3.0, 4.0]",
        ),
        (
            "async_handle",
            "1 ranks: average 1, meanwhile 21065.83",
            "2 ranks: average 1.5, meanwhile 21065.83",
        ),
        (
            "window",
            "1 ranks: from rank 0: [0.0, 0.0, 0.0, 0.0], then 9",
            "2 ranks: from rank 1: [1.0, 1.0, 1.0, 1.0], then 10",
        ),
        ("torch_tensors", "1 ranks: sum 1, rows [0.0]", "2 ranks: sum 3, rows [0.0, 1.0]"),
        (
            "torch_distributed",
            "1 ranks: gradients equal: True",
            "2 ranks: gradients equal: True",
        ),
    ],
)
def test_python_examples(name: str, alone: str, two: str) -> None:
    if name.startswith("torch"):
        pytest.importorskip("torch")
    command = [sys.executable, str(ROOT / "examples" / "python" / f"{name}.py")]
    assert run_ranks(command, 1).strip() == alone
    assert run_ranks(command, 2).strip() == two


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation of the C library, as `cmake --install` makes it."""
    build = os.environ.get("RW_BUILD_DIR")
    if not build:
        pytest.skip("RW_BUILD_DIR names no build folder; `make test` does")
    prefix = tmp_path_factory.mktemp("prefix")
    subprocess.run(
        ["cmake", "--install", str(ROOT / build), "--prefix", str(prefix)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return prefix


def library_folder(prefix: Path) -> Path:
    return next(prefix.rglob("libropewalk.so")).parent


def expect_sums(program: Path, prefix: Path) -> None:
    extra = {"LD_LIBRARY_PATH": str(library_folder(prefix))}
    assert run_ranks([str(program)], 1, extra).strip() == "1 ranks: 0 1 2 3"
    assert run_ranks([str(program)], 3, extra).strip() == "3 ranks: 3 6 9 12"


def expect_plans(program: Path, prefix: Path) -> None:
    machine = ROOT / "tests" / "topologies" / "dgx1v.json"
    extra = {"LD_LIBRARY_PATH": str(library_folder(prefix))}
    for name in ("dgx-a100", str(machine)):
        said = run_ranks([str(program), name], 1, extra).splitlines()
        assert said[0].startswith("1000 bytes: ") and '"valid":true' in said[3], said
        assert said[4].startswith("a schedule of "), said


def expect_messages(program: Path, prefix: Path) -> None:
    extra = {"LD_LIBRARY_PATH": str(library_folder(prefix))}
    alone = "1 ranks: 10 from rank 0, rank 0 has 10"
    assert run_ranks([str(program)], 1, extra).strip() == alone
    three = "3 ranks: 12 from rank 2, rank 0 has 12"
    assert run_ranks([str(program)], 3, extra).strip() == three


def test_c_example_by_pkg_config(installed: Path, tmp_path: Path) -> None:
    for name in ("all_reduce.c", "plan.c", "window.c", "Makefile"):
        (tmp_path / name).write_bytes((ROOT / "examples" / "c" / name).read_bytes())
    environment = {**os.environ, "PKG_CONFIG_PATH": str(library_folder(installed) / "pkgconfig")}
    subprocess.run(
        ["make", "-C", str(tmp_path)],
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    expect_sums(tmp_path / "all_reduce", installed)
    expect_plans(tmp_path / "plan", installed)
    expect_messages(tmp_path / "window", installed)


def test_c_example_by_cmake(installed: Path, tmp_path: Path) -> None:
    source = ROOT / "examples" / "c"
    configure = ["cmake", "-G", "Ninja", "-S", str(source), "-B", str(tmp_path)]
    subprocess.run(
        [*configure, f"-DCMAKE_PREFIX_PATH={installed}"], check=True, stdout=subprocess.DEVNULL
    )
    subprocess.run(["ninja", "-C", str(tmp_path)], check=True, stdout=subprocess.DEVNULL)
    expect_sums(tmp_path / "all_reduce", installed)
    expect_plans(tmp_path / "plan", installed)
    expect_messages(tmp_path / "window", installed)


STENCIL = ROOT / "examples" / "stencil"
SAID = re.compile(
    r"(\w+): (\d+) x (\d+) cells on (\d+) x (\d+) ranks: ([\d.]+) us an iteration, "
    r"([\d.]+) us of CPU, (.*)\n"
)


@pytest.fixture(scope="module")
def stencil(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs, without the forms on GPUs."""
    build = tmp_path_factory.mktemp("stencil")
    subprocess.run(
        ["cmake", "-G", "Ninja", "-S", str(STENCIL), "-B", str(build), "-DSTENCIL_CUDA=OFF"]
        + [f"-DCMAKE_PREFIX_PATH={installed}", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(["ninja", "-C", str(build)], check=True, stdout=subprocess.DEVNULL)
    return build


def expect_right(text: str, form: str, width: int, height: int) -> None:
    found = SAID.fullmatch(text)
    assert found, text
    assert found.group(1, 2, 3, 8) == (form, str(width), str(height), "right")
    assert float(found.group(6)) > 0 and float(found.group(7)) > 0


# Blocks of one row or column, sizes that do not divide, and one rank.
SHAPES = thorough_but(
    [(1, 40, 30), (2, 33, 17), (3, 5, 3), (4, 2, 2), (4, 67, 41), (6, 50, 31)],
    (1, 40, 30),
    (4, 67, 41),
)


@pytest.mark.parametrize(("ranks", "width", "height"), SHAPES)
@pytest.mark.parametrize("form", ["host", "batch"])
def test_stencil(
    stencil: Path, installed: Path, form: str, ranks: int, width: int, height: int
) -> None:
    options = ["--form", form, "--width", str(width), "--height", str(height)]
    extra = {"LD_LIBRARY_PATH": str(library_folder(installed))}
    expect_right(run_ranks([str(stencil / "stencil"), *options], ranks, extra), form, width, height)


@pytest.mark.parametrize(("ranks", "width", "height"), SHAPES)
@pytest.mark.parametrize("form", ["host", "batch"])
def test_python_stencil(form: str, ranks: int, width: int, height: int) -> None:
    options = ["--form", form, "--width", str(width), "--height", str(height)]
    options += ["--iterations", "21"]
    command = [sys.executable, str(STENCIL / "stencil.py"), *options]
    expect_right(run_ranks(command, ranks), form, width, height)


def test_stencil_refuses_what_cannot_be(stencil: Path, installed: Path) -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library_folder(installed))}
    for options, words in (
        (["--form", "stream"], "this program has: host batch"),
        (["--width", "0"], "a rank would have no cell"),
        (["--iterations", "0"], "not positive"),
        (["--size", "3"], "no such option"),
        (["--form"], "needs a value"),
    ):
        done = subprocess.run(
            [str(stencil / "stencil"), *options], env=environment, capture_output=True, text=True
        )
        assert done.returncode != 0 and words in done.stderr, done.stderr


def test_stencil_over_mpi(stencil: Path) -> None:
    if not (stencil / "stencil_mpi").exists():
        pytest.skip("no MPI")
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4"]
    if subprocess.run([*command, "true"], capture_output=True, timeout=60).returncode != 0:
        pytest.skip("mpirun does not start programs here")
    options = ["--width", "67", "--height", "41"]
    done = subprocess.run(
        [*command, str(stencil / "stencil_mpi"), *options],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    expect_right(done.stdout, "mpi", 67, 41)
