"""libnccl.so.2 without a GPU: its names, its structures, and errors instead of crashes."""

from __future__ import annotations

import ctypes
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import nccl_names
import pytest
from conftest import Program
from ropewalk import _library
from ropewalk.cli.run import environment_with, nccl_library

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = nccl_library()
SUCCESS, CUDA_ERROR, ARGUMENT, USAGE = 0, 1, 4, 5
UNDEFINED = -(2**31)

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
    assert exported() == nccl_names.names(nccl_names.NVIDIA)
    assert len(nccl_names.functions()) == 97


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
    texts = [nccl.ncclGetErrorString(code) for code in range(9)]
    assert len(set(texts)) == 9
    assert nccl.ncclGetErrorString(1000) == b"unknown result code"
    assert nccl.ncclGetErrorString(-1) == b"unknown result code"


@needs_library
def test_unique_ids_differ(nccl: Any) -> None:
    first, second = UniqueId(), UniqueId()
    assert nccl.ncclGetUniqueId(ctypes.byref(first)) == SUCCESS
    assert nccl.ncclGetUniqueId(ctypes.byref(second)) == SUCCESS
    assert bytes(first) != bytes(second)


@needs_library
def test_groups(nccl: Any) -> None:
    assert nccl.ncclGroupEnd() == USAGE
    assert nccl.ncclGroupStart() == SUCCESS
    assert nccl.ncclGroupStart() == SUCCESS
    assert nccl.ncclGroupEnd() == SUCCESS
    assert nccl.ncclAllReduce(None, None, ctypes.c_size_t(1), 7, 0, None, None) == ARGUMENT
    # The outermost ncclGroupEnd returns the group's first error, and the group is closed.
    assert nccl.ncclGroupEnd() == ARGUMENT
    assert nccl.ncclGroupEnd() == USAGE
    assert nccl.ncclGroupStart() == SUCCESS
    assert nccl.ncclGroupSimulateEnd(None) == SUCCESS
    assert nccl.ncclGroupSimulateEnd(None) == USAGE
    info = ctypes.create_string_buffer(struct.pack("=QIIf4x", 24, 0x74685283, 22809, 5.0))
    assert nccl.ncclGroupStart() == SUCCESS
    assert nccl.ncclGroupSimulateEnd(info) == SUCCESS
    assert struct.unpack_from("=f", info.raw, 16)[0] == -1.0


def config(
    size: int = 120,
    magic: int = 0xCAFEBEEF,
    blocking: int = 1,
    rest: int = UNDEFINED,
    version: int = 23203,
) -> Any:
    """ncclConfig_t's bytes, with room for fields of later versions: what is behind `size`, or newer
    than `version`, is rubbish."""
    fields = [blocking, *[rest] * 3, 0, *[rest] * 2, 0, *[rest] * 15]
    packed = struct.pack("=QIIiiiiQiiQ15i4x", size, magic, version, *fields)
    known = min(size, {21403: 20, 22907: 88}.get(version, 116))
    return ctypes.create_string_buffer(packed[:known] + b"\xfe" * 128)


@needs_library
@needs_no_driver
def test_configurations(nccl: Any) -> None:
    """Invalid arguments are reported before a missing driver."""

    def init(given: Any) -> int:
        comm = ctypes.c_void_p()
        result = int(nccl.ncclCommInitRankConfig(ctypes.byref(comm), 2, UniqueId(), 0, given))
        assert comm.value is None
        return result

    for good in (
        config(),
        config(blocking=0),
        config(size=160, version=23306),  # later than any that is known
        config(size=88, version=22907),
        config(size=80, version=22809),
        config(size=24, version=21403),  # its last four bytes are padding
        config(size=20, version=21403),
        None,
    ):
        assert init(good) == CUDA_ERROR, last_error(nccl)
    for bad in (config(magic=1), config(size=8), config(blocking=2), config(rest=-7)):
        assert init(bad) == ARGUMENT
        assert "config" in last_error(nccl)


def wishes(
    *,
    size: int = 72,
    magic: int = 0xCAFEBEEF,
    least: int = UNDEFINED,
    most: int = UNDEFINED,
    algorithm: bytes | None = None,
    force: int = 1,
    event: int = 0,
) -> Any:
    """ncclCollConfig_t's bytes."""
    text = ctypes.create_string_buffer(algorithm) if algorithm is not None else None
    address = ctypes.addressof(text) if text is not None else 0
    limits = [least, most, UNDEFINED, UNDEFINED]
    packed = struct.pack(
        "=QIIQ4iQiiQQ", size, magic, 23203, 0, *limits, address, force, UNDEFINED, 9, event
    )
    given: Any = ctypes.create_string_buffer(packed + b"\xfe" * 64)
    given.text = text  # lives as long
    return given


@needs_library
def test_wishes_of_one_operation(nccl: Any) -> None:
    """Requirements that cannot be met are errors; other fields are hints; an invalid communicator
    is an error."""

    def reduce(given: Any) -> tuple[int, str]:
        size, place = ctypes.c_size_t(4), ctypes.byref(ctypes.c_void_p())
        result = nccl.ncclAllReduceConfig(place, place, size, 7, 0, None, None, given)
        return int(result), last_error(nccl)

    for good in (
        None,
        wishes(),
        wishes(size=64, event=0xFEFE),  # of 2.31, which had no event
        wishes(size=136),
        wishes(least=2, most=4),
        wishes(algorithm=b""),
        wishes(algorithm=b"allreduce:ring", force=0),
    ):
        assert reduce(good) == (ARGUMENT, "ncclAllReduceConfig: comm: NULL")
    for bad, named in (
        (wishes(magic=1), "NCCL_COLLCONFIG_INITIALIZER"),
        (wishes(size=60), "60 bytes"),
        (wishes(least=0), "minCTAs"),
        (wishes(least=5, most=4), "maxCTAs"),
        (wishes(force=2), "forceAlgSelection"),
    ):
        result, text = reduce(bad)
        assert (result, "config" in text, named in text) == (ARGUMENT, True, True), text
    for bad, named in (
        (wishes(algorithm=b"allreduce:ring"), 'algSelection is "allreduce:ring"'),
        (wishes(event=0xFEFE), "launchCompletionEvent"),
    ):
        result, text = reduce(bad)
        assert (result, named in text) == (USAGE, True), text


@needs_library
def test_encryption_is_not_promised(nccl: Any) -> None:
    def ask(mode: int, magic: int = 0xCAFEBEEF) -> int:
        packed = struct.pack("=QIIi4xQ", 32, magic, 23203, mode, 0)
        return int(nccl.ncclSetEncryption(ctypes.create_string_buffer(packed)))

    assert ask(0) == SUCCESS
    assert ask(1) == USAGE
    assert "encrypt nothing" in last_error(nccl)
    assert ask(2) == ARGUMENT
    assert ask(0, magic=7) == ARGUMENT
    assert nccl.ncclSetEncryption(None) == ARGUMENT


class Team(ctypes.Structure):
    _fields_ = [("ranks", ctypes.c_int), ("rank", ctypes.c_int), ("stride", ctypes.c_int)]


@needs_library
def test_teams_of_no_communicator(nccl: Any) -> None:
    for name in ("ncclTeamWorld", "ncclTeamLsa", "ncclTeamRail"):
        getattr(nccl, name).restype = Team
        team = getattr(nccl, name)(None)
        assert (team.ranks, team.rank, team.stride) == (0, -1, 0)
        assert last_error(nccl) == f"{name}: comm: NULL"
    for name in ("ncclTeamRankToWorld", "ncclTeamRankToLsa"):
        assert getattr(nccl, name)(None, Team(2, 0, 1), 1) == -1
        assert last_error(nccl) == f"{name}: comm: NULL"


@needs_library
def test_windows_that_are_none(nccl: Any) -> None:
    place = ctypes.c_void_p(5)
    out = ctypes.byref(place)
    offset = ctypes.c_size_t(0)
    for handle in (None, ctypes.c_void_p(1), ctypes.c_void_p(0x5257000000000001)):
        assert nccl.ncclGetPeerDevicePointer(handle, offset, 0, out) == ARGUMENT
        assert "is not a window" in last_error(nccl)
        assert nccl.ncclGetLsaDevicePointer(handle, offset, 0, out) == ARGUMENT
        assert nccl.ncclGetLsaMultimemDevicePointer(handle, offset, out) == ARGUMENT
        assert nccl.ncclWinGetUserPtr(None, handle, out) == ARGUMENT
    assert place.value == 5


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
    "PutSignal": (out, size, 7, 0, None, size, 0, 0, 0, None, None),
    "Signal": (0, 0, 0, 0, None, None), "WaitSignal": (1, out, None, None),
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
    "AllReduceConfig": (out, out, size, 7, 0, None, None, None),
    "ReduceConfig": (out, out, size, 7, 0, 0, None, None, None),
    "ReduceScatterConfig": (out, out, size, 7, 0, None, None, None),
    "BroadcastConfig": (out, out, size, 7, 0, None, None, None),
    "AllGatherConfig": (out, out, size, 7, None, None, None),
    "AlltoAllConfig": (out, out, size, 7, None, None, None),
    "GatherConfig": (out, out, size, 7, 0, None, None, None),
    "ScatterConfig": (out, out, size, 7, 0, None, None, None),
    "CommGetUniqueId": (None, Id()), "CommGrow": (None, 2, out, 1, out, None),
    "CommMemStats": (None, 3, out), "CommQueryProperties": (None, out),
    "WinGetUserPtr": (None, None, out), "GetPeerDevicePointer": (None, size, 0, out),
    "GetLsaDevicePointer": (None, size, 0, out),
    "GetLsaMultimemDevicePointer": (None, size, out),
    "DevCommCreate": (None, out, out), "DevCommDestroy": (None, out),
    "LLA2ACreateRequirement": (1, 1, None, out),
    "ParamBind": (None, None), "ParamGetI32": (None, out), "ParamGetStr": (None, out),
    "ParamGet": (None, out, 8, out), "ParamGetParameter": (None, out, out),
    "ParamGetAllParameterKeys": (None, None), "SetEncryption": (None,),
}}
no_comm = ctypes.create_string_buffer(256)
for prefix in ("nccl", "pnccl"):
    for name, arguments in calls.items():
        assert getattr(nccl, prefix + name)(*arguments) != 0, name
    for name in ("CommCount", "CommFinalize", "CommDestroy", "CommAbort"):
        assert getattr(nccl, prefix + name)(no_comm, out) == {ARGUMENT}, name
    # Nothing to do is not an error.
    assert getattr(nccl, prefix + "CommDestroy")(None) == 0
    assert getattr(nccl, prefix + "CommAbort")(None) == 0
assert place.value is None
nccl.ncclResetDebugInit()
nccl.ncclResetDebugInitInternal()
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
def test_run_of_a_missing_program(program: Program, tmp_path: Path) -> None:
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


def test_preloading_keeps_other_libraries() -> None:
    library = Path("/x/libnccl.so.2")
    assert environment_with(library, {})["LD_PRELOAD"] == "/x/libnccl.so.2"
    before = environment_with(library, {"LD_PRELOAD": "/y.so", "A": "b"})
    assert before == {"LD_PRELOAD": "/x/libnccl.so.2:/y.so", "A": "b"}


def test_benchmark_declares_the_librarys_functions() -> None:
    """Every function that nccl_compare loads is one of NCCL's."""
    text = (ROOT / "benchmarks" / "nccl_compare" / "nccl_functions.h").read_text()
    known = set(nccl_names.functions())
    loaded = re.findall(r"LOAD\((\w+)\);", text)
    assert len(loaded) > 10
    assert {"nccl" + name for name in loaded} <= known
