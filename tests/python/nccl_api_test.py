"""libnccl.so.2 without a GPU: its names, its structures, and errors instead of crashes."""

from __future__ import annotations

import ctypes
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Program
from ropewalk import _library
from ropewalk.cli.run import environment_with, nccl_library

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIBRARY = nccl_library()
SUCCESS, CUDA_ERROR, ARGUMENT, USAGE = 0, 1, 4, 5

needs_library = pytest.mark.skipif(
    not LIBRARY.exists(), reason="libnccl.so.2 was not built: there is no CUDA"
)


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


needs_no_driver = pytest.mark.skipif(has_driver(), reason="there is a CUDA driver here")


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


@pytest.fixture
def nccl() -> Any:
    library = ctypes.CDLL(str(LIBRARY))
    for name in ("ncclGetErrorString", "ncclGetLastError"):
        getattr(library, name).restype = ctypes.c_char_p
    return library


def last_error(nccl: Any) -> str:
    return str(nccl.ncclGetLastError(None).decode())


def exported() -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(LIBRARY)], check=True, capture_output=True, text=True
    )
    return {line.split()[-1] for line in listing.stdout.splitlines()}


@needs_library
def test_every_function_of_nccl_is_exported_and_nothing_else() -> None:
    """nccl_symbols.txt: what libnccl.so.2 2.28.9 exports, save one internal name."""
    wanted = set((HERE / "nccl_symbols.txt").read_text().split())
    there = exported()
    assert wanted - there == set()
    assert {name for name in there if not re.match("p?nccl[A-Z]", name)} == set()
    for name in there:
        assert name.removeprefix("p") in there
        assert "p" + name.removeprefix("p") in there


@needs_library
def test_the_library_has_nccls_name() -> None:
    listing = subprocess.run(
        ["readelf", "-d", str(LIBRARY)], check=True, capture_output=True, text=True
    )
    assert "Library soname: [libnccl.so.2]" in listing.stdout
    # The driver is looked for at run time: without one the library loads all the same.
    assert "libcuda" not in listing.stdout


@needs_library
def test_version_and_texts(nccl: Any) -> None:
    version = ctypes.c_int()
    assert nccl.ncclGetVersion(ctypes.byref(version)) == SUCCESS
    assert version.value == 22809
    texts = [nccl.ncclGetErrorString(code) for code in range(8)]
    assert len(set(texts)) == 8
    assert nccl.ncclGetErrorString(1000) == b"unknown result code"
    assert nccl.ncclGetErrorString(-1) == b"unknown result code"


@needs_library
def test_unique_ids_differ(nccl: Any) -> None:
    first, second = UniqueId(), UniqueId()
    assert nccl.ncclGetUniqueId(ctypes.byref(first)) == SUCCESS
    assert nccl.ncclGetUniqueId(ctypes.byref(second)) == SUCCESS
    assert bytes(first) != bytes(second)


@needs_library
def test_what_is_not_offered_says_so(nccl: Any) -> None:
    for name in ("ncclCommRevoke", "ncclDevCommCreate", "pncclDevCommDestroy", "ncclPutSignal"):
        assert getattr(nccl, name)(None, None, None) == USAGE
        assert name.removeprefix("p") in last_error(nccl)
        assert "does not offer" in last_error(nccl)


@needs_library
def test_groups(nccl: Any) -> None:
    assert nccl.ncclGroupEnd() == USAGE
    assert nccl.ncclGroupStart() == SUCCESS
    assert nccl.ncclGroupStart() == SUCCESS
    assert nccl.ncclGroupEnd() == SUCCESS
    assert nccl.ncclAllReduce(None, None, ctypes.c_size_t(1), 7, 0, None, None) == ARGUMENT
    # The outermost end tells the group's first error, and the group is closed.
    assert nccl.ncclGroupEnd() == ARGUMENT
    assert nccl.ncclGroupEnd() == USAGE
    assert nccl.ncclGroupStart() == SUCCESS
    assert nccl.ncclGroupSimulateEnd(None) == SUCCESS
    assert nccl.ncclGroupSimulateEnd(None) == USAGE
    info = ctypes.create_string_buffer(struct.pack("=QIIf4x", 24, 0x74685283, 22809, 5.0))
    assert nccl.ncclGroupStart() == SUCCESS
    assert nccl.ncclGroupSimulateEnd(info) == SUCCESS
    assert struct.unpack_from("=f", info.raw, 16)[0] == -1.0


def config(size: int = 80, magic: int = 0xCAFEBEEF, blocking: int = 1, rest: int = -(2**31)) -> Any:
    """ncclConfig_t's bytes, with room for fields of later versions."""
    packed = struct.pack(
        "=QIIiiiiQiiQiiiiii",
        size,
        magic,
        22809,
        blocking,
        *[rest] * 3,
        0,
        *[rest] * 2,
        0,
        *[rest] * 6,
    )
    return ctypes.create_string_buffer(packed + b"\xff" * 64)


@needs_library
@needs_no_driver
def test_configurations(nccl: Any) -> None:
    """What is wrong is told before the driver is missed."""

    def init(given: Any) -> int:
        comm = ctypes.c_void_p()
        result = int(nccl.ncclCommInitRankConfig(ctypes.byref(comm), 2, UniqueId(), 0, given))
        assert comm.value is None
        return result

    for good in (config(), config(size=20), config(size=120), config(blocking=0), None):
        assert init(good) == CUDA_ERROR, last_error(nccl)
    for bad in (config(magic=1), config(size=8), config(blocking=2), config(rest=-7)):
        assert init(bad) == ARGUMENT
        assert "config" in last_error(nccl)


@needs_library
@needs_no_driver
def test_without_a_driver_every_function_gives_an_error() -> None:
    """One process for all: a crash of one is seen by the missing rest."""
    script = f"""
import ctypes
nccl = ctypes.CDLL({str(LIBRARY)!r})
size, place = ctypes.c_size_t(4), ctypes.c_void_p()
out = ctypes.byref(place)
class Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]
calls = {{
    "CommInitRank": (out, 1, Id(), 0), "CommInitRankConfig": (out, 1, Id(), 0, None),
    "CommInitRankScalable": (out, 1, 0, 1, out, None), "CommInitAll": (out, 1, None),
    "CommSplit": (None, 0, 0, out, None), "CommShrink": (None, None, 0, out, None, 0),
    "CommFinalize": (None,), "CommRevoke": (None, 0), "CommGetAsyncError": (None, out),
    "CommCount": (None, out), "CommCuDevice": (None, out), "CommUserRank": (None, out),
    "MemAlloc": (out, size), "MemFree": (ctypes.c_void_p(64),),
    "CommRegister": (None, out, size, out), "CommDeregister": (None, None),
    "CommWindowRegister": (None, out, size, out, 0), "CommWindowDeregister": (None, None),
    "RedOpCreatePreMulSum": (out, out, 7, 1, None), "RedOpDestroy": (5, None),
    "AllReduce": (out, out, size, 7, 0, None, None),
    "Reduce": (out, out, size, 7, 0, 0, None, None),
    "ReduceScatter": (out, out, size, 7, 0, None, None), "Bcast": (out, size, 7, 0, None, None),
    "Broadcast": (out, out, size, 7, 0, None, None), "AllGather": (out, out, size, 7, None, None),
    "AlltoAll": (out, out, size, 7, None, None), "Gather": (out, out, size, 7, 0, None, None),
    "Scatter": (out, out, size, 7, 0, None, None), "Send": (out, size, 7, 0, None, None),
    "Recv": (out, size, 7, 0, None, None), "GetVersion": (None,), "GetUniqueId": (None,),
}}
no_comm = ctypes.create_string_buffer(256)
for prefix in ("nccl", "pnccl"):
    for name, arguments in calls.items():
        assert getattr(nccl, prefix + name)(*arguments) != 0, name
    for name in ("CommCount", "CommFinalize", "CommDestroy", "CommAbort"):
        assert getattr(nccl, prefix + name)(no_comm, out) == {ARGUMENT}, name
    # Nothing to do is no error.
    assert getattr(nccl, prefix + "CommDestroy")(None) == 0
    assert getattr(nccl, prefix + "CommAbort")(None) == 0
assert place.value is None
nccl.ncclResetDebugInit()
print("all done")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all done\n"
    assert done.stderr == "", "without NCCL_DEBUG nothing is logged"


@needs_library
@pytest.mark.parametrize("level", ["WARN", "INFO"])
def test_nccl_debug(level: str) -> None:
    script = f"import ctypes; ctypes.CDLL({str(LIBRARY)!r}).ncclCommRevoke(None, 0)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env={"NCCL_DEBUG": level, "NCCL_DEBUG_SUBSYS": "INIT,NVLS,COLL"},
    )
    assert re.search(r"^\S+:\d+:\d+ \[\d+\] ROPEWALK WARN ncclCommRevoke: ", done.stderr), (
        done.stderr
    )


@needs_library
def test_run_gives_a_program_the_library(program: Program) -> None:
    script = "import ctypes; print(ctypes.CDLL(None).ncclGroupStart())"
    done = program("run", "--", sys.executable, "-c", script)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    done = program("run", "--", sys.executable, "-c", "raise SystemExit(7)")
    assert done.returncode == 7
    # Its own options are the program's.
    done = program("run", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--help")
    assert done.stdout == "['--help']\n"


@needs_library
def test_run_passes_settings_on(program: Program) -> None:
    script = "import os; print(os.environ['ROPEWALK_TIMEOUT'])"
    done = program("run", "--set", "timeout=7s", "--", sys.executable, "-c", script)
    assert done.stdout == "7s\n", done.stderr


@needs_library
def test_run_of_what_is_no_program(program: Program, tmp_path: Path) -> None:
    assert program("run", "--", str(tmp_path / "none")).returncode == 127
    (tmp_path / "text").write_text("no program")
    assert program("run", "--", str(tmp_path / "text")).returncode == 126


def test_run_without_the_library_says_why(program: Program, tmp_path: Path) -> None:
    copy = tmp_path / "libropewalk.so.0"
    real = Path(_library.path()).resolve()
    copy.write_bytes(real.read_bytes())
    done = program(
        "run",
        "--",
        "true",
        env={"ROPEWALK_LIBRARY": str(copy), "LD_LIBRARY_PATH": str(real.parent)},
    )
    assert done.returncode == 2
    assert "built without CUDA" in done.stderr


def test_preloading_keeps_what_was_preloaded() -> None:
    library = Path("/x/libnccl.so.2")
    assert environment_with(library, {})["LD_PRELOAD"] == "/x/libnccl.so.2"
    before = environment_with(library, {"LD_PRELOAD": "/y.so", "A": "b"})
    assert before == {"LD_PRELOAD": "/x/libnccl.so.2:/y.so", "A": "b"}


def test_benchmark_declares_what_the_library_has() -> None:
    """Every function that nccl_compare loads is one of NCCL's."""
    text = (ROOT / "benchmarks" / "nccl_compare" / "nccl_functions.h").read_text()
    known = set((HERE / "nccl_symbols.txt").read_text().split())
    loaded = re.findall(r"LOAD\((\w+)\);", text)
    assert len(loaded) > 10
    assert {"nccl" + name for name in loaded} <= known
