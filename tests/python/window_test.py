"""Windows from Python: arrays, views, handles, batches, and what is refused."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ropewalk
from conftest import Worlds, run_ranks
from ropewalk.communicator import Communicator
from ropewalk.errors import ArgumentError, NotCopiedError, PeerLostError, UsageError
from ropewalk.window import DeviceMemory


def test_put_signal_and_wait(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        right, left = (comm.rank + 1) % 3, (comm.rank + 2) % 3
        with comm.window(1000, slots=2) as window:
            assert window.nbytes() == 1000 and window.slots == 2 and window.array is None
            mine = np.frombuffer(window.memory() or b"", dtype="int32")
            window.put(np.arange(10, dtype="int32") + comm.rank, right, offset=40)
            window.signal(right, slot=1)
            window.wait_signal(left, slot=1)
            assert mine[10:20].tolist() == list(range(left, left + 10))
            assert window.signals(left, 1) == 1
            window.put_signal(np.float64(comm.rank), right)
            window.wait_signal(left)
            out = np.zeros(10, dtype="int32")
            window.get(out, right, offset=40)
            assert out.tolist() == list(range(comm.rank, comm.rank + 10))
            window.flush()
            window.flush(right)
        assert window.closed
        # A view stays, though the window is gone.
        assert mine[10] == left

    run_ranks(worlds(3), body)


def test_an_array_as_a_window(worlds: Worlds) -> None:
    torch = pytest.importorskip("torch")

    def body(comm: Communicator) -> None:
        array: Any = np.zeros(6) if comm.rank == 0 else torch.zeros(4)
        peer = 1 - comm.rank
        with comm.window(array) as window:
            assert window.array is array and window.memory() is None
            assert window.nbytes(peer) == (48 if peer == 0 else 16)
            value = np.full(2, 7.0) if peer == 0 else torch.full((2,), 8.0)
            window.put(value, peer, offset=8)
            window.signal(peer)
            window.wait_signal(peer)
            expected = [0, 7, 7, 0, 0, 0] if comm.rank == 0 else [0, 0, 8, 8]
            assert array.tolist() == expected

    run_ranks(worlds(2), body)


def test_handles(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        peer = 1 - comm.rank
        window = comm.window(80_000)
        waited = window.wait_signal(peer, blocking=False)
        assert waited is not None and not waited.done()
        with pytest.raises(UsageError, match="have not ended"):
            window.close()
        comm.barrier()
        source = np.full(10_000, float(comm.rank))
        put = window.put(source, peer, blocking=False)
        assert put is not None and put.wait(60) is source
        signalled = window.signal(peer, blocking=False)
        assert signalled is not None and signalled.wait(60) is None
        assert waited.wait(60) is None
        out = np.empty(10_000)
        got = window.get(out, peer, blocking=False)
        assert got is not None and got.wait(60) is out
        assert (out == comm.rank).all()
        window.close()
        window.close()

    run_ranks(worlds(2), body)


def test_batches(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        peer = 1 - comm.rank
        with comm.window(64) as window:
            mine = np.frombuffer(window.memory() or b"", dtype="int64")
            source, back = np.zeros(4, dtype="int64"), np.zeros(4, dtype="int64")
            batch = window.batch().put(source, peer).signal(peer).wait_signal(peer)
            batch.get(back, peer).flush(peer)
            for step in range(10):
                source[:] = 100 * comm.rank + step
                if step % 2:
                    handle = batch.launch(blocking=False)
                    assert handle is not None
                    handle.wait(60)
                else:
                    batch.launch()
                assert mine[:4].tolist() == [100 * peer + step] * 4
                assert back.tolist() == source.tolist()
                comm.barrier()
            held = window.batch().wait_signal(peer)
            launched = held.launch(blocking=False)
            with pytest.raises(UsageError, match="has not ended"):
                held.launch()
            del held
            gc.collect()  # the handle keeps it
            comm.barrier()
            window.signal(peer)
            assert launched is not None
            launched.wait(60)

    run_ranks(worlds(2), body)


def test_several_ranks_of_one_thread() -> None:
    comms = ropewalk.init_all(2)
    with ropewalk.group():
        windows = [comm.window(8) for comm in comms]
    windows[0].put_signal(np.float32(3), 1)
    windows[1].wait_signal(0)
    assert np.frombuffer(windows[0].memory(1) or b"", dtype="float32")[0] == 3
    with ropewalk.group():
        for window in windows:
            window.close()
    run_ranks(comms, Communicator.finalize)


def test_what_is_refused(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        peer = 1 - comm.rank
        window = comm.window(100)
        array = np.zeros(10)
        with pytest.raises(ArgumentError, match=r"put of 80 bytes to rank .*offset 21 and 80"):
            window.put(array, peer, offset=21)
        with pytest.raises(ArgumentError, match="peer 2 is outside 0 to 1"):
            window.put(array, 2)
        with pytest.raises(ArgumentError, match="offset -1 is"):
            window.put(array, peer, offset=-1)
        with pytest.raises(ArgumentError, match="slot 1 is outside"):
            window.signal(peer, slot=1)
        with pytest.raises(ArgumentError, match="count 0 is"):
            window.signal(peer, count=0)
        with pytest.raises(ArgumentError, match="NumPy scalar"):
            window.get(np.float64(3), peer)
        with pytest.raises(ArgumentError, match="out"):
            window.get([1.0], peer)
        with pytest.raises(ArgumentError, match=r"read-only|writable"):
            window.get(b"abc", peer)
        # An address of a GPU, which nobody may read here.
        on_gpu = DeviceMemory(4096, 8)
        for call in (window.put, window.put_signal, window.get):
            with pytest.raises(
                ArgumentError, match="on a GPU, and the window in the host's memory"
            ):
                call(on_gpu, peer)
        batch = window.batch().put(on_gpu, peer)
        with pytest.raises(ArgumentError, match="on a GPU, and the window in the host's memory"):
            batch.launch()
        with pytest.raises(NotCopiedError):
            copy.copy(window)
        with pytest.raises(ArgumentError, match="nbytes -1"):
            comm.window(-1)
        with pytest.raises(UsageError, match=r"slots differ: rank 0 has 1, rank 1 has 2"):
            comm.window(8, slots=comm.rank + 1)
        window.put(array, peer)
        window.close()
        with pytest.raises(UsageError, match="closed"):
            window.put(array, peer)
        comm.barrier()

    run_ranks(worlds(2), body)


def test_a_rank_that_left() -> None:
    comms = ropewalk.init_all(2)
    with ropewalk.group():
        windows = [comm.window(8) for comm in comms]
    comms[1].finalize()
    with pytest.raises(PeerLostError, match="rank 1 left"):
        windows[0].wait_signal(1)
    with pytest.raises(PeerLostError, match="rank 1 left"):
        windows[0].put(np.zeros(1), 1)
    with pytest.raises(UsageError, match="finalized or aborted"):
        windows[1].signal(0)
    comms[0].finalize()


# With software in place of CUDA's driver, whose GPUs run no kernels.
ON_STAND_IN = """
import numpy, ropewalk
comms = ropewalk.init_all(2)
with ropewalk.group():
    queues = [comm.queues(1000, slots=2, device="cuda:0") for comm in comms]
with ropewalk.group():
    window = [comm.window(8, device="cuda:0") for comm in comms]
assert queues[0].slots == 2
for words, function in {
    "kernels": lambda: queues[0].send(numpy.zeros(4), 1, stream=1),
    "peer": lambda: queues[0].receive(numpy.zeros(4), 2, stream=1),
    "slot": lambda: queues[0].receive(numpy.zeros(4), 1, 2, stream=1),
}.items():
    try:
        function()
    except (ropewalk.UsageError, ropewalk.ArgumentError) as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
with ropewalk.group():
    for each in (*queues, *window):
        each.close()
assert all(each.closed for each in queues)
try:
    queues[0].send(numpy.zeros(4), 1, stream=1)
except ropewalk.UsageError as error:
    assert "closed" in str(error)
print("all done")
"""


# The driver's own store is in place of a kernel's.
ARMED = """
import ctypes, os, time
import numpy, ropewalk
driver = ctypes.CDLL(os.environ["ROPEWALK_CUDA_LIBRARY"])
def call(name, *arguments):
    result = getattr(driver, name)(*arguments)
    assert result == 0, (name, result)
comms = ropewalk.init_all(2)
with ropewalk.group():
    windows = [comm.window(8, device="cuda:0") for comm in comms]
context, streams = ctypes.c_void_p(), [ctypes.c_void_p(), ctypes.c_void_p()]
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxPushCurrent_v2", context)
for stream in streams:
    call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
pinned = ctypes.c_void_p()
call("cuMemHostAlloc", ctypes.byref(pinned), 8, 3)
source = numpy.frombuffer((ctypes.c_char * 8).from_address(pinned.value), "int64")
batch = windows[0].batch().put(source, 1).signal(1)
try:
    windows[0].batch().arm(streams[0].value)
except ropewalk.UsageError as error:
    assert "no operations" in str(error)
else:
    raise AssertionError("not refused")
got = numpy.zeros(1, "int64")
for turn in range(3):
    trigger = batch.arm(streams[0].value)
    time.sleep(0.01)
    assert windows[1].signals(0) == turn
    source[0] = 70 + turn
    call("cuStreamWriteValue64_v2", streams[1], ctypes.c_uint64(trigger.address),
         ctypes.c_uint64(trigger.value), 0)
    windows[1].wait_signal(0)
    windows[1].get(got, 1)
    assert got[0] == 70 + turn, got
while driver.cuStreamQuery(streams[0]) != 0:
    time.sleep(0.001)
with ropewalk.group():
    for window in windows:
        window.close()
print("all done")
"""


@pytest.mark.parametrize("program", [ON_STAND_IN, ARMED], ids=["queues", "armed"])
def test_on_gpus(program: str) -> None:
    library = Path(os.environ.get("RW_BUILD_DIR", "build")) / "tests" / "libstand_in_cuda.so"
    if not library.exists():
        pytest.skip("no build with tests at hand ($RW_BUILD_DIR)")
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "ROPEWALK_CUDA_LIBRARY": str(library.resolve())},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout == "all done\n", ended.stdout + ended.stderr


def test_queues_are_for_gpus(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        for device, words in ((None, "for GPUs"), ("cpu", "for GPUs"), ("gpu", "pass")):
            with pytest.raises(ArgumentError, match=words):
                comm.queues(1000, device=device)
        with pytest.raises(ArgumentError, match="nbytes"):
            comm.queues(0, device="cuda")

    run_ranks(worlds(1), body)
