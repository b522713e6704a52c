"""The random programs of tests/gpu/message_programs.py, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import Worlds, run_ranks
from ropewalk.communicator import Communicator

GPU_TESTS = Path(__file__).parents[1] / "gpu"
sys.path.append(str(GPU_TESTS))

import message_programs  # noqa: E402


def seeds() -> range:
    """RW_TEST_SEEDS=FIRST-LAST, as tests in C++ read it."""
    first, last = os.environ.get("RW_TEST_SEEDS", "0-24").split("-")
    return range(int(first), int(last) + 1)


@pytest.mark.parametrize("ranks", [2, 3])
def test_in_the_hosts_memory(worlds: Worlds, ranks: int) -> None:
    def body(comm: Communicator) -> None:
        message_programs.run(message_programs.Place(comm), seeds())

    run_ranks(worlds(ranks), body)


def test_a_wrong_byte_is_told(worlds: Worlds) -> None:
    class Wrong(message_programs.Place):
        def own_part(self) -> message_programs.Bytes:
            part = super().own_part()
            part[message_programs.REGION] ^= 1
            return part

    def body(comm: Communicator) -> None:
        with pytest.raises(
            AssertionError, match=r"seed 7, rank .: 1 bytes differ.*handle of rank 0"
        ):
            message_programs.run(Wrong(comm), range(7, 8))

    run_ranks(worlds(2), body)


def test_what_gets_must_find_follows_from_the_puts() -> None:
    """The model against another one: all steps of a lane again, in their order."""
    lanes = message_programs.Place.kinds(None, call=True, graph=False)  # type: ignore[arg-type]
    programs = message_programs.Programs(3, 2, lanes)
    windows = [np.zeros(2 * 2 * message_programs.REGION, np.uint8) for _ in range(2)]
    gets = 0
    for _ in range(20):
        for source in range(2):
            for lane in lanes:
                for step in programs.steps(source, lane):
                    begin = programs.offset(source, lane) + step.offset
                    there = windows[step.target][begin : begin + step.data.size]
                    if step.kind == "put":
                        there[:] = step.data
                    elif step.kind == "get":
                        gets += 1
                        assert (there == step.data).all()
        for target in range(2):
            assert (windows[target] == programs.window(target)).all()
        programs.next_round()
    assert gets > 5


# Streams are threads of software in place of CUDA's driver; arenas are pinned memory.
ON_STAND_IN = """
import ctypes, os, sys, time
import numpy, ropewalk
sys.path += sys.argv[1:3]
import message_programs
from conftest import run_ranks
driver = ctypes.CDLL(os.environ["ROPEWALK_CUDA_LIBRARY"])
def call(name, *arguments):
    result = getattr(driver, name)(*arguments)
    assert result == 0, (name, result)

class Streams(message_programs.Place):
    def __init__(self, comm):
        self.comm = comm
        self.lanes = self.kinds(call=True, stream=True, other=True, batch=True, graph=False)
        self.window = self.make_window("cuda:0")
        context, pinned = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        call("cuCtxPushCurrent_v2", context)
        self.streams = {}
        for lane in self.lanes:
            if lane == "call":
                continue
            self.streams[lane] = ctypes.c_void_p()
            call("cuStreamCreateWithPriority", ctypes.byref(self.streams[lane]), 1, 0)
        nbytes = message_programs.ARENA * len(self.lanes)
        call("cuMemHostAlloc", ctypes.byref(pinned), nbytes, 3)
        self.arena = numpy.frombuffer((ctypes.c_char * nbytes).from_address(pinned.value), "uint8")
    def stream(self, lane):
        return self.streams[lane].value if lane in self.streams else None
    def settle(self):
        for stream in self.streams.values():
            while driver.cuStreamQuery(stream) != 0:
                time.sleep(0.0001)
    def own_part(self):
        part = numpy.zeros(self.window.nbytes(), "uint8")
        self.window.get(part, self.comm.rank)
        return part
    def capture(self, body):
        return body  # what it enqueues is enqueued again
    def clear(self):
        self.window.put(numpy.zeros(self.window.nbytes(), "uint8"), self.comm.rank)
        self.window.flush(self.comm.rank)

first, last = (int(each) for each in sys.argv[3].split("-"))
comms = ropewalk.init_all(2)
run_ranks(comms, lambda comm: message_programs.run(Streams(comm), range(first, last + 1)))
print("all done")
"""


@pytest.mark.parametrize("net", ["", "shm"])
def test_on_streams(net: str) -> None:
    library = Path(os.environ.get("RW_BUILD_DIR", "build")) / "tests" / "libstand_in_cuda.so"
    if not library.exists():
        pytest.skip("no build with tests at hand ($RW_BUILD_DIR)")
    which = seeds()
    links = {"ROPEWALK_LINKS": "network", "ROPEWALK_NET": net} if net else {}
    ended = subprocess.run(
        [
            *(sys.executable, "-c", ON_STAND_IN, str(GPU_TESTS), str(Path(__file__).parent)),
            f"{which.start}-{which.stop - 1}",
        ],
        env={**os.environ, **links, "ROPEWALK_CUDA_LIBRARY": str(library.resolve())},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.stdout == "all done\n", ended.stdout + ended.stderr
