"""libnccl.so.2's functions: programs find those they need, refused ones say so, the page lists
all."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import nccl_names
import pytest
from conftest import Program
from ropewalk.cli.run import nccl_library

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = nccl_library()
USAGE = 5

needs_library = pytest.mark.skipif(
    not LIBRARY.exists(), reason="libnccl.so.2 was not built: there is no CUDA"
)
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def refused() -> dict[str, str]:
    """Functions that are not offered, with the name of the reason."""
    text = (ROOT / "src" / "capi" / "nccl" / "not_offered.cc").read_text()
    plain = re.findall(r"^RW_NCCL_NOT_OFFERED\((\w+), (\w+)\)", text, re.M)
    valued = re.findall(r"^RW_NCCL_NO_VALUE\(\w+, (\w+), .*, (\w+)\)", text, re.M)
    return dict(plain + valued)


# ---- what programs need ---------------------------------------------------------------------


def test_names_that_programs_need_are_nvidias() -> None:
    assert nccl_names.users() == [
        "cupy-cuda13x-14.2.0",
        "jax-cuda13-pjrt-0.12.0.1",
        "torch-2.12.0",
        "torch-2.15.0",
        "vllm-pynccl",
    ]
    known = nccl_names.names(nccl_names.NVIDIA)
    for user in nccl_names.users():
        assert len(nccl_names.names(user)) > 15
        assert nccl_names.names(user) <= known, user


@needs_library
@pytest.mark.parametrize("user", nccl_names.users())
def test_functions_that_programs_need_exist(user: str) -> None:
    library = ctypes.CDLL(str(LIBRARY))
    missing = [name for name in nccl_names.names(user) if not hasattr(library, name)]
    assert missing == []


@pytest.fixture
def extension(tmp_path: Path) -> Path:
    """Refers to every function, by data and by calls, and to no file that has them."""
    names = sorted(nccl_names.names(nccl_names.NVIDIA))
    source = tmp_path / "extension.c"
    source.write_text(
        "".join(f"extern int {name}(void);\n" for name in names)
        + "int (*const all[])(void) = {" + ", ".join(names) + "};\n"
        + "int count(void) { return sizeof all / sizeof *all; }\n"
        + "int call_all(void) { return " + " + ".join(f"{name}()" for name in names) + "; }\n"
    )  # fmt: skip
    built = tmp_path / "extension.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(built), str(source)], check=True)
    return built


OPEN = """
import ctypes, os, sys
print(ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW).count())
"""


@needs_library
@needs_compiler
def test_an_extension_that_binds_all_names_at_once_loads(extension: Path, program: Program) -> None:
    """As CPython opens extensions: one name that is missing ends the import."""
    without = subprocess.run(
        [sys.executable, "-c", OPEN, str(extension)], check=False, capture_output=True, text=True
    )
    assert "undefined symbol" in without.stderr, "the test tests nothing"
    done = program("run", "--", sys.executable, "-c", OPEN, str(extension))
    assert (done.returncode, done.stdout) == (0, "193\n"), done.stderr


# ---- refused functions ------------------------------------------------------------------------


class Team(ctypes.Structure):
    _fields_ = [("ranks", ctypes.c_int), ("rank", ctypes.c_int), ("stride", ctypes.c_int)]


@needs_library
@pytest.mark.parametrize("name", sorted(refused()))
def test_refused_functions_name_what_is_missing(name: str) -> None:
    library = ctypes.CDLL(str(LIBRARY))
    library.ncclGetLastError.restype = ctypes.c_char_p
    for prefix in ("", "p"):
        function = getattr(library, prefix + name)
        place = ctypes.c_void_p(5)
        if name.startswith("ncclTeam"):
            function.restype = Team
            assert function(None, 0).rank == -1
        else:
            outcome = function(None, None, None, ctypes.byref(place))
            assert outcome == USAGE
        said = library.ncclGetLastError(None).decode()
        assert said.startswith(f"{name}: Ropewalk does not offer this function: "), said
        assert len(said) > len(name) + 60
        assert place.value == 5


@needs_library
def test_a_group_with_a_refused_call_ends_with_its_error() -> None:
    library = ctypes.CDLL(str(LIBRARY))
    assert library.ncclGroupStart() == 0
    assert library.ncclCommSuspend(None, 1) == USAGE
    assert library.ncclGroupEnd() == USAGE


# ---- the page -------------------------------------------------------------------------------


def test_the_page_has_every_function_once_as_it_is() -> None:
    page = (ROOT / "docs" / "nccl.md").read_text()
    table = page.split("\n## Function by function\n")[1].split("\n## ")[0]
    stated: dict[str, str] = {}
    for row in re.findall(r"^\| (`.*) \| (works|refused|in part) \| .*\|$", table, re.M):
        for name in re.findall(r"`(\w+)`", row[0]):
            assert name not in stated, f"{name} is there twice"
            stated[name] = row[1]
    assert sorted(stated) == nccl_names.functions()
    assert {name for name, state in stated.items() if state == "refused"} == set(refused())


# ---- the tool that makes the lists -----------------------------------------------------------


@needs_compiler
def test_names_are_read_from_a_wheel(extension: Path, tmp_path: Path) -> None:
    source = tmp_path / "looks_up.c"
    source.write_text('const char* names[] = {"ncclSend", "ncclRecv", "no ncclBcast", "nccl"};')
    looks_up = tmp_path / "looks_up.so.2"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(looks_up), str(source)], check=True)
    wheel = tmp_path / "some-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.write(extension, "some/extension.so")
        files.write(looks_up, "some/looks_up.so.2")
        files.writestr("some/text.py", "ncclAllReduce")

    def made(kind: str) -> tuple[str, set[str]]:
        done = subprocess.run(
            [sys.executable, str(ROOT / "dev" / "wheel_names.py"), kind, str(wheel)],
            check=False,
            capture_output=True,
            text=True,
        )
        comment, *names = done.stdout.splitlines() or [done.stderr]
        return comment, set(names)

    comment, names = made("imports")
    assert comment.startswith("# some-1.0-py3-none-any.whl: ")
    assert comment.endswith(" some/extension.so")
    assert names == nccl_names.names(nccl_names.NVIDIA)
    assert {"ncclSend", "ncclRecv"} <= made("texts")[1]
    assert "ncclBcast" not in {name for name in made("texts")[1] if name not in names}
    assert "no library with such names" in made("exports")[0]
