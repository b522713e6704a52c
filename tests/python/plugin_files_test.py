"""The network plugin's files: under which names NCCL and RCCL find it, and under which only when
asked for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Program
from ropewalk import _library

BUILD = os.environ.get("RW_BUILD_DIR")

# The file by NCCL_NET_PLUGIN=ropewalk; and the one that is opened without it, and always by NCCL
# before 2.11 and RCCL before ROCm 5.1.
BY_NAME = {"libnccl-net-ropewalk.so", "librccl-net-ropewalk.so"}
BY_DEFAULT = {"libnccl-net.so", "librccl-net.so"}


def files_of(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("lib*ccl-net*.so") if path.is_file()}


def test_the_package_has_every_name() -> None:
    package = Path(_library.path()).resolve().parent
    if package.name != "lib":
        pytest.skip("the library in use is not a wheel's")
    assert files_of(package) == BY_NAME
    assert files_of(package / "nccl-net") == BY_DEFAULT


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `lib` of an installation."""
    if BUILD is None:
        pytest.skip("RW_BUILD_DIR names no build folder; `make test` does")
    prefix = tmp_path_factory.mktemp("prefix")
    options = ["--prefix", str(prefix), "--component", "runtime"]
    subprocess.run(["cmake", "--install", BUILD, *options], check=True, capture_output=True)
    (found,) = prefix.rglob("libnccl-net-ropewalk.so")
    return found.parent


def test_an_installation_has_every_name(installed: Path) -> None:
    assert files_of(installed) == BY_NAME
    assert files_of(installed / "ropewalk" / "nccl-net") == BY_DEFAULT
    # No other folder: the system's loader would find it.
    assert len(list(installed.rglob("lib*ccl-net.so"))) == 2


# As NCCL 2.8 to 2.10: the name alone, version 4, no variable but those of the path and the network.
OPENED = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1], mode=2)  # RTLD_NOW, local
words = (ctypes.c_void_p * 16).in_dll(library, "ncclNetPlugin_v4")
assert ctypes.string_at(words[0]) == b"Ropewalk"
LOGGER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int,
                          ctypes.c_char_p)
logger = LOGGER(lambda *_: None)
init = ctypes.CFUNCTYPE(ctypes.c_int, LOGGER)(words[1])
devices = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))(words[2])
count = ctypes.c_int()
print(init(logger), devices(ctypes.byref(count)), count.value > 0)
# What is looked for as well, and may be missing: reductions within the network.
print(hasattr(library, "ncclCollNetPlugin_v4"))
print([version for version in range(3, 14) if hasattr(library, f"ncclNetPlugin_v{version}")])
"""


@pytest.mark.parametrize("name", sorted(BY_DEFAULT))
@pytest.mark.parametrize("kind", ["package", "installation"])
def test_is_found_by_the_name_that_old_releases_open(
    name: str, kind: str, request: pytest.FixtureRequest
) -> None:
    folder = (
        Path(_library.path()).resolve().parent
        if kind == "package"
        else Path(request.getfixturevalue("installed")) / "ropewalk"
    ) / "nccl-net"
    if not folder.exists():
        pytest.skip("the library in use is not a wheel's")
    environment = {"LD_LIBRARY_PATH": str(folder), "ROPEWALK_NET": "shm"}
    done = subprocess.run(
        [sys.executable, "-c", OPENED, name],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.stdout.splitlines() == ["0 0 True", "False", str(list(range(4, 13)))], done.stderr


def test_is_not_found_where_nobody_asked_for_it() -> None:
    """The folder of the libraries, which programs may search for others of them."""
    folder = Path(_library.path()).resolve().parent
    for name in sorted(BY_DEFAULT):
        done = subprocess.run(
            [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", name],
            check=False,
            capture_output=True,
            text=True,
            env={"LD_LIBRARY_PATH": str(folder)},
        )
        assert done.returncode == 1
        assert "cannot open shared object file" in done.stderr


def test_keeps_the_rules_of_version_4_under_that_name(program: Program) -> None:
    folder = Path(_library.path()).resolve().parent / "nccl-net"
    if not folder.exists():
        pytest.skip("the library in use is not a wheel's")
    file = str(folder / "libnccl-net.so")
    arguments = ("--version", "4", "--no-measure", "--only", "groups", "--only", "zero-bytes")
    done = program("check-plugin", file, *arguments, env={"ROPEWALK_NET": "tcp"})
    assert done.returncode == 0, done.stdout + done.stderr
