"""GPUs in the package, as far as it can be seen without one: everything says why it cannot.

Arrays on GPUs are stood in for by objects that only describe one; nothing touches their memory.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy as np
import pytest
import ropewalk
from conftest import Program, Worlds, run_ranks
from ropewalk import _library, device_arrays, joining
from ropewalk.arrays import UNKNOWN_DEVICE, buffer_of
from ropewalk.communicator import Communicator
from ropewalk.measure import measure
from ropewalk.types import DATA_TYPES

needs_no_gpu = pytest.mark.skipif(ropewalk.device_count() > 0, reason="this machine has GPUs")


class OnGpu:
    """What an array on a GPU says by `__cuda_array_interface__`."""

    def __init__(
        self, *, read_only: bool = False, stream: Optional[int] = None, **over: Any
    ) -> None:
        self.__cuda_array_interface__ = {
            "shape": (3, 4),
            "typestr": "<f4",
            "data": (4096, read_only),
            "version": 3,
            "stream": stream,
            **over,
        }


class Dlpack:
    """An array on GPU 1 by DLPack: the capsule of a NumPy array under another device's name."""

    def __init__(self) -> None:
        self.array = np.zeros(5, np.int64)
        self.asked: Any = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 1

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.asked = stream
        return self.array.__dlpack__()


def test_cuda_array_interface_is_read() -> None:
    found = buffer_of(OnGpu(), "array", writable=True)
    assert (found.address, found.count, found.type.name) == (4096, 12, "float32")
    assert found.device == UNKNOWN_DEVICE
    assert found.stream == device_arrays.LEGACY_STREAM
    assert buffer_of(OnGpu(stream=77), "array", writable=True, device=3).stream == 77
    assert buffer_of(OnGpu(stream=77), "array", writable=True, device=3).device == 3


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"read_only": True}, "read-only"),
        ({"typestr": "|O8"}, "elements of type"),
        ({"strides": (4, 12)}, "not contiguous"),
        ({"data": (4097, False)}, "not a multiple"),
        ({"mask": object()}, "masked"),
    ],
)
def test_bad_arrays_on_gpus_are_refused(over: dict[str, Any], words: str) -> None:
    with pytest.raises(ropewalk.ArgumentError, match=words):
        buffer_of(OnGpu(**over), "array", writable=True)


def test_arrays_of_jax_are_never_written() -> None:
    class Frozen(np.ndarray[Any, Any]):
        pass

    Frozen.__module__ = "jaxlib._jax"
    array = np.zeros(3).view(Frozen)
    assert buffer_of(array, "array", writable=False).count == 3
    with pytest.raises(ropewalk.ArgumentError, match="read-only"):
        buffer_of(array, "array", writable=True)


def test_dlpack_orders_the_stream_that_will_work() -> None:
    array = Dlpack()
    found = buffer_of(array, "array", writable=False)
    assert (found.device, found.count, found.type.name) == (1, 5, "int64")
    assert array.asked == found.stream == device_arrays.LEGACY_STREAM
    assert buffer_of(array, "array", writable=False, stream=99).stream == 99
    assert array.asked == 99


def test_streams_are_understood() -> None:
    class Torch:
        cuda_stream = 5

    class Cupy:
        ptr = 0

    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 6

    handles = [device_arrays.stream_handle(one) for one in (0, 2, 9, Torch(), Cupy(), Protocol())]
    assert handles == [1, 2, 9, 5, 1, 6]
    with pytest.raises(ropewalk.ArgumentError, match="stream is a str"):
        device_arrays.stream_handle("0")


def test_gpu_and_host_do_not_mix(worlds: Worlds) -> None:
    comm = worlds(1)[0]
    host = np.ones(12, np.float32)
    for array, out in ((OnGpu(), host), (host, OnGpu())):
        with pytest.raises(ropewalk.ArgumentError, match=r"in host memory.*on one GPU"):
            comm.all_reduce(array, out=out)
    with pytest.raises(ropewalk.ArgumentError, match="stream is for arrays on GPUs"):
        comm.all_reduce(host, stream=7)
    calls: list[Any] = [
        lambda array: comm.all_reduce(array),
        lambda array: comm.broadcast(array),
        lambda array: comm.reduce(array),
        lambda array: comm.all_gather(array),
        lambda array: comm.reduce_scatter(array),
        lambda array: comm.all_to_all(array, OnGpu()),
        lambda array: comm.gather(array),
        lambda array: comm.scatter(array),
        lambda array: comm.sendrecv(array, OnGpu()),
        lambda array: comm.send(array, 0),
        lambda array: comm.recv(array, 0),
        lambda array: comm.all_reduce(array, blocking=False),
    ]
    for call in calls:
        with pytest.raises(ropewalk.UsageError, match="has no GPU"):
            call(OnGpu())
    assert (comm.all_reduce(host) == 1).all()  # and nothing is broken
    assert comm.device is None
    assert comm.device_memory == 0


@needs_no_gpu
def test_without_gpus_everything_says_why() -> None:
    reason = ropewalk.why_no_device()
    assert reason
    with pytest.raises(ropewalk.UsageError) as raised:
        ropewalk.init(device="cuda")
    assert reason in str(raised.value)
    with pytest.raises(ropewalk.UsageError) as raised:
        ropewalk.init(device="cuda:0")
    assert reason in str(raised.value)
    with pytest.raises(ropewalk.UsageError):
        ropewalk.init_all(2, device="cuda")
    from ropewalk import peers

    with pytest.raises(ropewalk.UsageError) as raised:
        peers.measure_peers()
    assert reason in str(raised.value)


@needs_no_gpu
def test_the_c_api_says_why_it_cannot() -> None:
    library = _library.library()
    request, text, count = _library.Request(), ctypes.c_void_p(), ctypes.c_int(5)
    for result in (
        library.rwStreamMark(0, None, ctypes.byref(request)),
        library.rwDeviceDescribe(0, ctypes.byref(text)),
        library.rwMeasurePeers(1 << 20, 1, ctypes.byref(text)),
    ):
        with pytest.raises(ropewalk.UsageError):
            _library.check(result)
    assert not request
    assert not text
    _library.check(library.rwDeviceCount(ctypes.byref(count)))
    assert count.value == 0
    with pytest.raises(ropewalk.ArgumentError, match="count: NULL"):
        _library.check(library.rwDeviceCount(None))


@needs_no_gpu
def test_all_ranks_hear_that_there_is_no_gpu() -> None:
    comms = ropewalk.init_all(2)

    def body(comm: Communicator) -> None:
        with pytest.raises(ropewalk.UsageError):
            comm.attach(0)
        array = np.ones(4)
        comm.all_reduce(array)
        assert (array == 2).all()
        comm.finalize()

    run_ranks(comms, body)


def test_registering_needs_a_gpu(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        array = np.ones(4)
        with pytest.raises(ropewalk.UsageError, match="memory of the host needs no registration"):
            comm.register(array)
        with pytest.raises(ropewalk.UsageError, match="has no GPU"):
            _library.check(_library.library().rwCommWindowDeregister(comm.c_handle, 1))
        comm.all_reduce(array)
        assert (array == 2).all()

    comms = worlds(2)
    run_ranks(comms, body)
    with pytest.raises(ropewalk.UsageError, match="has no GPU"), ropewalk.group():
        made = [comm.register(np.ones(4), symmetric=True) for comm in comms]
        assert all(one.closed for one in made), "not before the group's end"
    for one in made:
        one.close()
        assert one.closed
    library = _library.library()
    for register in (library.rwCommWindowRegister, library.rwCommWindowRegisterSymmetric):
        with pytest.raises(ropewalk.ArgumentError, match="window: NULL"):
            _library.check(register(comms[0].c_handle, None, 0, None))
    with pytest.raises(ropewalk.ArgumentError, match="comm: NULL"):
        _library.check(library.rwCommWindowDeregister(None, 1))


def test_a_measurement_on_the_host_registers_nothing(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(ropewalk.UsageError, match="needs no registration"):
            measure(comm, "all_reduce", 4, DATA_TYPES["float32"], registered=True)

    run_ranks(worlds(2), body)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "host"])
def test_names_that_are_no_gpu(device: str) -> None:
    with pytest.raises(ropewalk.ArgumentError, match='neither "cuda" nor'):
        joining.device_number(device, 0)


def test_numbers_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "device_count", lambda: 4)
    for name in joining._LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    assert joining.device_number("cuda:7", 1) == 7
    assert joining.device_number(2, 1) == 2
    assert joining.device_number("cuda", 5) == 1
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert joining.device_number("cuda", 5) == 3


@needs_no_gpu
def test_bench_says_why_it_cannot(program: Program) -> None:
    done = program("bench", "all_reduce", "--device", "cuda")
    assert done.returncode == 2
    assert done.stderr == f"ropewalk: --device cuda: {ropewalk.why_no_device()}\n"
    done = program("bench", "all_reduce", "--graph")
    assert done.returncode == 2
    assert ropewalk.why_no_device() in done.stderr
    done = program("bench", "all_reduce", "--device", "host", "-b", "64", "-e", "64", "-n", "2")
    assert done.returncode == 0, done.stderr
    assert "host memory" in done.stdout
    short = ("bench", "all_reduce", "--device", "host", "-b", "64", "-e", "64", "-n", "2")
    for number, words in (("0", ""), ("1", "changes nothing"), ("2", "needs no registration")):
        done = program(*short, "-R", number)
        assert done.returncode == 0, done.stderr
        assert words in done.stderr
        assert done.stderr.count("\n") == (words != "")
    assert program(*short, "-R", "3").returncode == 2
    done = program("bench", "all_reduce", "--device", "fpga")
    assert done.returncode == 2
    assert "host, cuda" in done.stderr


@needs_no_gpu
def test_p2p_says_why_it_cannot(program: Program) -> None:
    done = program("p2p")
    assert done.returncode == 2
    assert done.stderr == f"ropewalk: {ropewalk.why_no_device()}\n"


def test_the_choice_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from ropewalk.cli import bench_device

    monkeypatch.setattr(bench_device, "count_gpus", lambda: (2, ""))
    assert bench_device.choose(None, None).gpus == 2
    assert bench_device.choose(None, 2).gpus == 2
    crowded = bench_device.choose(None, 3)
    assert crowded.gpus == 0
    assert crowded.note == "host memory: there are 2 GPUs for 3 ranks"
    assert bench_device.choose("host", 2).gpus == 0
    monkeypatch.setattr(bench_device, "count_gpus", lambda: (0, "no driver"))
    assert bench_device.choose(None, 2) == bench_device.Site(0, "no driver")


def test_p2p_tables() -> None:
    from ropewalk.cli import p2p

    found = {
        "gpus": [{"device": i, "name": "G", "bus_id": f"0000:0{i}:00.0"} for i in range(2)],
        "peer_access": [[True, False], [True, True]],
        "matrices": [
            {
                "what": "bandwidth",
                "direction": "bidirectional",
                "by": "copy engine",
                "peer_access": True,
                "unit": "GB/s",
                "values": [[1234.5, None], [50.25, 7.0]],
            }
        ],
        "host": [
            {"what": "latency", "direction": "host to GPU", "by": "kernel load", "unit": "us",
             "values": [1.5, 2.5]},
        ],
    }  # fmt: skip
    text = "\n".join(p2p.text(found))
    assert "Device=0 CANNOT access peer device=1" in text
    assert "Device=1 CAN access peer device=0" in text
    assert "Bidirectional bandwidth by copy engine, peer access enabled (GB/s)" in text
    assert "     0  1234.50        -\n     1    50.25     7.00" in text
    assert "host to GPU, kernel load     1.50     2.50" in text
