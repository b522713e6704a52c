"""Bad input gives an exception that names the error, and nothing hangs."""

from __future__ import annotations

import builtins
import ctypes
import re
import subprocess
import sys
from typing import Any, Callable

import numpy as np
import pytest
import ropewalk
from conftest import run_ranks
from ropewalk._library import (
    _PLAN_OUT,
    _PROTOTYPES,
    _TEXT_OUT,
    _TOPOLOGY_OUT,
    Comm,
    MeasureResult,
    MeasureSpec,
    check,
    library,
)
from ropewalk.communicator import Communicator
from ropewalk.measure import measure
from ropewalk.types import DATA_TYPES
from running import unshare


def test_the_class_tree() -> None:
    assert issubclass(ropewalk.ArgumentError, ValueError)
    assert issubclass(ropewalk.SystemCallError, OSError)
    assert issubclass(ropewalk.PeerLostError, ConnectionError)
    assert issubclass(ropewalk.TimeoutError, builtins.TimeoutError)
    for name in ("ArgumentError", "UsageError", "SystemCallError", "CudaError", "PeerLostError"):
        assert issubclass(getattr(ropewalk, name), ropewalk.Error)
    assert str(ropewalk.SystemCallError("words")) == "words"


def test_a_dev_shm_that_is_too_small_is_named_with_its_size() -> None:
    bench = "bench all_reduce --ranks 2 -b 1M -e 1M -n 2 --set SHM_BACKING=dev_shm"
    script = f"mount -t tmpfs -o size=64k tmpfs /dev/shm && exec {sys.executable} -m ropewalk "
    done = subprocess.run(
        [*unshare("--mount"), "sh", "-c", script + bench],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode not in (0, 1)
    assert "SIG" not in done.stderr
    assert re.search(r"/dev/shm is 64 KiB with \d+ KiB free; \d+ KiB were needed", done.stderr)


@pytest.fixture
def alone() -> Any:
    with ropewalk.init_all(1)[0] as comm:
        yield comm


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda comm: comm.all_reduce(np.ones(3), "median"), 'unknown operator "median"'),
        (lambda comm: comm.all_reduce(np.ones(3), np.ones(3)), "unknown operator"),
        (lambda comm: comm.all_reduce(np.ones(3), out=np.ones(4)), "3 elements and out 4"),
        (
            lambda comm: comm.all_reduce(np.ones(3), out=np.ones(3, np.float32)),
            "array holds float64, out holds float32",
        ),
        (lambda comm: comm.all_reduce(b"1234"), "read-only"),
        (lambda comm: comm.broadcast(np.ones(3), root=1), "root"),
        (lambda comm: comm.broadcast(np.ones(3), root=-1), "root"),
        (lambda comm: comm.send(np.ones(3), peer=7), "7"),
        (lambda comm: comm.pre_mul_sum(1, "float12"), 'unknown type "float12"'),
        (lambda comm: comm.pre_mul_sum(300, "int8"), "300 is no int8"),
        (
            lambda comm: comm.all_reduce(np.ones(3), comm.pre_mul_sum(1, "int8")),
            "operator is for int8",
        ),
        (lambda comm: comm.use_schedule("nonsense"), "line 1"),
        (lambda comm: comm.split(-2), "color -2"),
    ],
)
def test_arguments(
    alone: Communicator, call: Callable[[Communicator], object], reason: str
) -> None:
    with pytest.raises(ropewalk.ArgumentError, match=reason):
        call(alone)
    # The communicator still works.
    assert alone.all_reduce(np.ones(2)).tolist() == [1, 1]


def test_all_to_all_in_place_is_refused_on_host_memory(alone: Communicator) -> None:
    array = np.arange(4.0)
    with pytest.raises(ropewalk.ArgumentError, match="all_to_all has no in-place form"):
        alone.all_to_all(array, array)
    assert array.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("timeout", ["1", -0.5, float("nan"), [1]])
def test_a_timeout_that_is_no_time(alone: Communicator, timeout: Any) -> None:
    array = np.ones(2)
    handle = alone.all_reduce(array, blocking=False)
    with pytest.raises(ropewalk.ArgumentError, match="timeout of "):
        handle.wait(timeout)
    assert handle.wait(np.float64(1e300)) is array


def test_joining_arguments() -> None:
    with pytest.raises(ropewalk.ArgumentError, match="all three or none"):
        ropewalk.init(rank=0)
    with pytest.raises(ropewalk.ArgumentError, match="has 3 bytes"):
        ropewalk.init(unique_id=b"abc", rank=0, size=1)
    with pytest.raises(ropewalk.ArgumentError):
        ropewalk.init(unique_id=ropewalk.unique_id(), rank=2, size=2)
    with pytest.raises(ropewalk.ArgumentError, match="not positive"):
        ropewalk.init_all(0)


def test_a_closed_communicator_says_so() -> None:
    comm = ropewalk.init_all(1)[0]
    comm.finalize()
    assert comm.closed
    assert "closed" in repr(comm)
    with pytest.raises(ropewalk.UsageError, match="finalized or aborted"):
        comm.all_reduce(np.ones(1))
    with pytest.raises(ropewalk.UsageError):
        comm.finalize()


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda comm: comm.all_reduce(np.ones(3 + comm.rank)), "count"),
        (lambda comm: comm.all_reduce(np.ones(4, ["f4", "f8"][comm.rank])), "type"),
        (lambda comm: comm.all_reduce(np.ones(4), ["sum", "max"][comm.rank]), "operator|op"),
        # Two roots only send, so neither notices; the next operation finds the data that they sent.
        (
            lambda comm: [comm.broadcast(np.ones(4), root=comm.rank), comm.all_reduce(np.ones(4))],
            "root|broadcast",
        ),
    ],
)
def test_ranks_that_disagree_get_the_field(
    call: Callable[[Communicator], object], word: str
) -> None:
    texts: list[str] = []

    def body(comm: Communicator) -> None:
        with comm, pytest.raises(ropewalk.Error) as caught:
            call(comm)
        texts.append(str(caught.value))

    run_ranks(ropewalk.init_all(2), body)
    assert any(re.search(word, text) and "rank" in text for text in texts), texts


def test_a_wait_raises_the_error_of_its_operation() -> None:
    def body(comm: Communicator) -> str:
        with comm:
            handle = comm.all_reduce(np.ones(3 + comm.rank), blocking=False)
            with pytest.raises(ropewalk.Error) as caught:
                handle.wait(60)
        return str(caught.value)

    texts = run_ranks(ropewalk.init_all(2), body)
    assert any("count" in text and "rank" in text for text in texts), texts


def test_an_abort_ends_the_others_with_an_error() -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            comm.abort()
            return
        with pytest.raises(ropewalk.PeerLostError, match="1"):
            comm.all_reduce(np.ones(100_000))
        with pytest.raises(ropewalk.PeerLostError):
            comm.check()
        comm.abort()

    run_ranks(ropewalk.init_all(3), body)


def test_a_block_that_raises_aborts() -> None:
    comm = ropewalk.init_all(1)[0]
    with pytest.raises(KeyError), comm:
        raise KeyError
    assert comm.closed


def test_settings_name_the_error() -> None:
    with pytest.raises(ropewalk.ArgumentError, match="NO_SUCH"):
        ropewalk.settings.set("NO_SUCH", 1)
    with pytest.raises(ropewalk.ArgumentError, match="SLOTS"):
        ropewalk.settings.set("SLOTS", "many")


def test_settings_tell_who_gave_them() -> None:
    def given() -> tuple[str, str]:
        row = next(row for row in ropewalk.settings.describe() if row["name"] == "ROPEWALK_SLOTS")
        return row["value"], row["source"]

    before = given()
    try:
        check(library().rwSettingSet(b"SLOTS", b"16", None))
        assert given() == ("16", "API")
        check(library().rwSettingSet(b"SLOTS", b"32", b"a flag"))
        assert given() == ("32", "a flag")
    finally:
        check(library().rwSettingSet(b"SLOTS", *(word.encode() for word in before)))
    assert given() == before


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("size", 8, "spec.size: 8 is too small"),
        ("collective", b"all_reverse", 'spec.collective: unknown "all_reverse"'),
        ("collective", None, "spec.collective"),
        ("type", -1, "spec.type: -1"),
        ("type", 99, "spec.type: 99"),
        ("op", -1, "spec.op: -1"),
        ("op", 99, "spec.op: 99"),
        ("barrier", 2, "spec.barrier: 2"),
    ],
)
def test_measured_operations_must_exist(
    alone: Communicator, field: str, value: Any, reason: str
) -> None:
    words = {"collective": b"all_reduce", "count": 4, "iterations": 1, field: value}
    spec = MeasureSpec(**{"size": ctypes.sizeof(MeasureSpec), **words})
    result = MeasureResult()
    comms = (Comm * 1)(alone.c_handle)
    with pytest.raises(ropewalk.ArgumentError, match=reason):
        check(library().rwMeasureGroup(comms, 1, ctypes.byref(spec), ctypes.byref(result)))
    assert result.algorithm == b""


def test_an_exchange_is_not_measured_in_place(alone: Communicator) -> None:
    kind = DATA_TYPES["float32"]
    assert measure(alone, "all_to_all", 4, kind, iterations=1).wrong == 0
    with pytest.raises(ropewalk.ArgumentError, match="no in-place form"):
        measure(alone, "all_to_all", 4, kind, iterations=1, in_place=True)


# To the types of C a communicator's place and a request's are one.
@pytest.mark.parametrize(
    ("name", "types"),
    [
        (name, types)
        for name, types in _PROTOTYPES.items()
        if types[-1:] in ((_TEXT_OUT,), (_TOPOLOGY_OUT,), (_PLAN_OUT,))
        and Comm not in types
        and not name.startswith("rwCommInit")
    ],
)
def test_output_pointers_must_not_be_null(name: str, types: tuple[Any, ...]) -> None:
    """Checked before anything else."""
    some = {ctypes.c_char_p: b"", ctypes.c_int: 2, ctypes.c_size_t: 2, ctypes.c_double: 2.0}
    before = [some.get(kind) for kind in types[:-1]]
    with pytest.raises(
        ropewalk.ArgumentError, match=r"^(json|text|report|topology|plan|made): NULL$"
    ):
        check(getattr(library(), name)(*before, None))


@pytest.mark.parametrize(
    "name", [name for name, types in _PROTOTYPES.items() if types == (Comm, _TEXT_OUT)]
)
def test_output_pointers_of_a_communicator_must_not_be_null(alone: Communicator, name: str) -> None:
    with pytest.raises(ropewalk.ArgumentError, match=r"^(json|text|xml|report|batch): NULL$"):
        check(getattr(library(), name)(alone.c_handle, None))


def test_a_schedule_that_cannot_be() -> None:
    with pytest.raises(ropewalk.ArgumentError, match="zigzag"):
        ropewalk.schedule.make("all_reduce", "zigzag", 4)
    with pytest.raises(ropewalk.ArgumentError):
        ropewalk.schedule.make("all_reduce", "ring", 0)
