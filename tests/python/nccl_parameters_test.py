"""ncclParam…: Ropewalk's settings as NCCL's parameters."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from ropewalk.cli.run import nccl_library

LIBRARY = nccl_library()
SUCCESS, ARGUMENT = 0, 4

pytestmark = pytest.mark.skipif(
    not LIBRARY.exists(), reason="libnccl.so.2 was not built: there is no CUDA"
)


@pytest.fixture
def nccl() -> Iterator[Any]:
    library = ctypes.CDLL(str(LIBRARY))
    library.ncclGetLastError.restype = ctypes.c_char_p
    yield library


def said(nccl: Any) -> str:
    return str(nccl.ncclGetLastError(None).decode())


def bound(nccl: Any, key: str) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    assert nccl.ncclParamBind(ctypes.byref(handle), key.encode()) == SUCCESS, said(nccl)
    return handle


def test_numbers(nccl: Any) -> None:
    timeout = bound(nccl, "ROPEWALK_TIMEOUT")
    long = ctypes.c_int64()
    assert nccl.ncclParamGetI64(timeout, ctypes.byref(long)) == SUCCESS
    assert long.value % 1_000_000_000 == 0 and long.value > 0
    for name, kind in (("I8", ctypes.c_int8), ("U16", ctypes.c_uint16), ("I32", ctypes.c_int32)):
        value = kind(5)
        assert getattr(nccl, "ncclParamGet" + name)(timeout, ctypes.byref(value)) == ARGUMENT
        assert "bits do not hold" in said(nccl)
        assert value.value == 5
    flag = ctypes.c_uint8(7)
    assert nccl.ncclParamGetU8(bound(nccl, "ROPEWALK_CHECK_CALLS"), ctypes.byref(flag)) == SUCCESS
    assert flag.value in (0, 1)
    size = ctypes.c_uint64()
    assert nccl.ncclParamGetU64(bound(nccl, "ROPEWALK_SLOT_BYTES"), ctypes.byref(size)) == SUCCESS


def test_texts(nccl: Any) -> None:
    text, length = ctypes.c_char_p(), ctypes.c_int()
    handle = bound(nccl, "ROPEWALK_NET")
    assert nccl.ncclParamGetStr(handle, ctypes.byref(text)) == SUCCESS
    assert text.value == b"auto"
    assert nccl.ncclParamGetI32(handle, ctypes.byref(length)) == ARGUMENT
    assert "ROPEWALK_NET is a text" in said(nccl)
    # As text a number is returned as it was given.
    key = b"ROPEWALK_TIMEOUT"
    outcome = nccl.ncclParamGetParameter(key, ctypes.byref(text), ctypes.byref(length))
    assert outcome == SUCCESS
    assert text.value is not None
    assert length.value == len(text.value)


def test_raw(nccl: Any) -> None:
    room, length = ctypes.create_string_buffer(16), ctypes.c_int()
    handle = bound(nccl, "ROPEWALK_NET")
    assert nccl.ncclParamGet(handle, room, 4, ctypes.byref(length)) == ARGUMENT
    assert nccl.ncclParamGet(handle, room, 16, ctypes.byref(length)) == SUCCESS
    assert room.raw[: length.value] == b"auto\0"
    handle = bound(nccl, "ROPEWALK_CHECK_CALLS")
    assert nccl.ncclParamGet(handle, room, 16, ctypes.byref(length)) == SUCCESS
    assert (length.value, int.from_bytes(room.raw[:8], "little") <= 1) == (8, True)


def test_all_keys_can_be_bound(nccl: Any) -> None:
    table, count = ctypes.POINTER(ctypes.c_char_p)(), ctypes.c_int()
    outcome = nccl.ncclParamGetAllParameterKeys(ctypes.byref(table), ctypes.byref(count))
    assert outcome == SUCCESS
    keys = [table[i].decode() for i in range(count.value)]
    assert len(set(keys)) == len(keys) > 30
    for key in keys:
        bound(nccl, key)
    # NCCL's own variables name the setting that they stand for.
    assert bound(nccl, "NCCL_DEBUG").value == bound(nccl, "ROPEWALK_DEBUG").value


def test_unknown_parameters(nccl: Any) -> None:
    handle, value = ctypes.c_void_p(3), ctypes.c_int64()
    for key in (b"NCCL_BUFFSIZE", b"TIMEOUT", b""):
        assert nccl.ncclParamBind(ctypes.byref(handle), key) == ARGUMENT
        assert f"no parameter {key.decode()}" in said(nccl)
    assert handle.value == 3
    for forged in (None, ctypes.c_void_p(8), ctypes.c_void_p(2**60)):
        assert nccl.ncclParamGetI64(forged, ctypes.byref(value)) == ARGUMENT


def test_dump() -> None:
    script = f"import ctypes; ctypes.CDLL({str(LIBRARY)!r}).ncclParamDumpAll()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        env={"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ENV", "ROPEWALK_TIMEOUT": "77s"},
    )
    assert "ROPEWALK_TIMEOUT = 77s" in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("environment", "given"),
    [
        ({}, "cudaMalloc"),
        ({"TORCH_SYMMMEM": "NCCL"}, "pages"),
        ({"TORCH_SYMMMEM": "NVSHMEM"}, "cudaMalloc"),
        ({"TORCH_SYMMMEM": "NCCL", "ROPEWALK_MEM_ALLOC": "cudaMalloc"}, "cudaMalloc"),
    ],
)
def test_torchs_symmetric_memory_gets_pages(environment: dict[str, str], given: str) -> None:
    """As it is of no use without them; Ropewalk's own variable comes first."""
    script = f"""
import ctypes
text, length = ctypes.c_char_p(), ctypes.c_int()
nccl = ctypes.CDLL({str(LIBRARY)!r})
places = ctypes.byref(text), ctypes.byref(length)
assert nccl.ncclParamGetParameter(b"ROPEWALK_MEM_ALLOC", *places) == 0
print(text.value.decode())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment
    )
    assert done.stdout == f"{given}\n"
