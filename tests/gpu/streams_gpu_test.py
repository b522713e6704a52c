"""Streams, handles, groups, graphs; arrays of other libraries."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import ropewalk
from conftest import run_ranks
from gpu_support import DEADLINE_SECONDS, need_gpus, num_gpus, on_gpus, torch
from ropewalk.communicator import Communicator

need_gpus(2)


@pytest.fixture(scope="module")
def comms() -> Iterator[list[Communicator]]:
    with on_gpus(num_gpus()) as made:
        yield made
        run_ranks(made, Communicator.finalize)


def ranks_sum(comm: Communicator) -> int:
    return comm.size * (comm.size - 1) // 2


def test_an_operation_follows_its_stream(comms: list[Communicator]) -> None:
    def body(comm: Communicator) -> None:
        device = torch.device("cuda", comm.device)
        for stream in (torch.cuda.Stream(device), torch.cuda.current_stream(device)):
            for given in (stream, stream.cuda_stream):
                with torch.cuda.stream(stream):
                    tensor = torch.zeros(1 << 20, device=device)
                    torch.cuda._sleep(20_000_000)  # the input is written late
                    tensor += comm.rank
                comm.all_reduce(tensor, stream=given)
                with torch.cuda.stream(stream):
                    doubled = tensor * 2
                stream.synchronize()
                assert (doubled == 2 * ranks_sum(comm)).all()

    run_ranks(comms, body)


def test_handles(comms: list[Communicator]) -> None:
    def body(comm: Communicator) -> None:
        device = torch.device("cuda", comm.device)
        torch.cuda.set_device(device)
        tensor = torch.full((1 << 20,), float(comm.rank), device=device)
        torch.cuda._sleep(200_000_000)
        handle = comm.all_reduce(tensor, blocking=False)
        with pytest.raises(TimeoutError):
            handle.wait(0.001)
        assert not handle.done()
        assert handle.wait(60) is tensor
        assert handle.done()
        assert (tensor == ranks_sum(comm)).all()

    run_ranks(comms, body)


def test_groups_of_sends_and_receives(comms: list[Communicator]) -> None:
    def body(comm: Communicator) -> None:
        device = f"cuda:{comm.device}"
        for elements in (5, 1 << 20):
            mine = torch.full((elements,), float(comm.rank), device=device)
            got = torch.zeros(elements, device=device)
            with comm.group():
                comm.send(mine, (comm.rank + 1) % comm.size)
                handle = comm.recv(got, (comm.rank - 1) % comm.size, blocking=False)
            handle.wait(60)
            assert (got == (comm.rank - 1) % comm.size).all()

    run_ranks(comms, body)


def test_all_to_all_in_place() -> None:
    with on_gpus(2) as comms:
        tensors = [torch.arange(8, device=f"cuda:{comm.rank}") + 100 * comm.rank for comm in comms]
        with ropewalk.group():
            for comm, tensor in zip(comms, tensors, strict=True):
                comm.all_to_all(tensor, out=tensor)
        torch.cuda.synchronize()
        assert tensors[0].tolist() == [0, 1, 2, 3, 100, 101, 102, 103]
        assert tensors[1].tolist() == [4, 5, 6, 7, 104, 105, 106, 107]


def test_one_thread_drives_all_gpus(comms: list[Communicator]) -> None:
    tensors = [torch.full((70001,), comm.rank + 1.0, device=f"cuda:{comm.rank}") for comm in comms]
    for i in range(len(comms)):
        torch.cuda.synchronize(i)
    with ropewalk.group():
        for comm, tensor in zip(comms, tensors):
            comm.all_reduce(tensor)
    wanted = sum(comm.rank + 1 for comm in comms)
    assert all((tensor == wanted).all() for tensor in tensors)


def test_graphs(comms: list[Communicator]) -> None:
    tensors = [torch.zeros(4096, device=f"cuda:{comm.rank}") for comm in comms]
    outs = [torch.zeros(4096, device=f"cuda:{comm.rank}") for comm in comms]
    graphs = []
    streams = [torch.cuda.Stream(i) for i in range(len(comms))]
    for comm, tensor, out, stream in zip(comms, tensors, outs, streams):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(comm.rank), torch.cuda.graph(graph, stream=stream):
            for _ in range(5):
                comm.all_reduce(tensor, out=out)
        graphs.append(graph)
    for i in range(10):
        for comm, tensor, stream in zip(comms, tensors, streams):
            with torch.cuda.device(comm.rank), torch.cuda.stream(stream):
                tensor.fill_(comm.rank + i)
        for comm, graph, stream in zip(comms, graphs, streams):
            with torch.cuda.device(comm.rank), torch.cuda.stream(stream):
                graph.replay()
        for comm, out in zip(comms, outs):
            torch.cuda.synchronize(comm.rank)
            assert (out == comm.size * i + ranks_sum(comm)).all()


def test_split(comms: list[Communicator]) -> None:
    def body(comm: Communicator) -> None:
        smaller = comm.split(0, key=-comm.rank)
        assert smaller is not None
        assert smaller.device == comm.device
        assert smaller.rank == comm.size - 1 - comm.rank
        tensor = torch.ones(100, device=f"cuda:{comm.device}")
        smaller.all_reduce(tensor)
        assert (tensor == comm.size).all()
        smaller.finalize()

    run_ranks(comms, body)


def test_memory_is_told(comms: list[Communicator]) -> None:
    assert all(0 < comm.device_memory < 256 << 20 for comm in comms)


def test_cupy(comms: list[Communicator]) -> None:
    cupy = pytest.importorskip("cupy")

    def body(comm: Communicator) -> None:
        with cupy.cuda.Device(comm.device), cupy.cuda.Stream(non_blocking=True) as stream:
            array = cupy.full(70001, comm.rank, dtype="float32")
            comm.all_reduce(array)
            out = cupy.zeros((comm.size, 3), dtype="int64")
            comm.all_gather(cupy.full(3, comm.rank), out=out)
            stream.synchronize()
            assert (array == ranks_sum(comm)).all()
            assert (out == cupy.arange(comm.size)[:, None]).all()

    run_ranks(comms, body)


def test_jax_arrays_are_inputs(comms: list[Communicator]) -> None:
    jax = pytest.importorskip("jax")
    try:
        devices = jax.devices("gpu")
    except RuntimeError as reason:
        pytest.skip(f"JAX has no GPUs: {reason}")

    def body(comm: Communicator) -> None:
        array = jax.device_put(jax.numpy.full(1000, comm.rank, "float32"), devices[comm.rank])
        out: Any = torch.zeros(1000, device=f"cuda:{comm.device}")
        comm.all_reduce(array, out=out)
        torch.cuda.synchronize(comm.device)
        assert (out == ranks_sum(comm)).all()
        with pytest.raises(ropewalk.ArgumentError, match="read-only"):
            comm.all_reduce(array)
        assert (array == comm.rank).all()

    run_ranks(comms, body)


def test_cuda_array_interface(comms: list[Communicator]) -> None:
    class Foreign:
        """As Numba's arrays: no DLPack, no own device."""

        def __init__(self, tensor: Any) -> None:
            self.__cuda_array_interface__ = {
                "shape": tuple(tensor.shape),
                "typestr": "<f4",
                "data": (tensor.data_ptr(), False),
                "version": 3,
                "stream": torch.cuda.current_stream(tensor.device).cuda_stream or 1,
            }

    def body(comm: Communicator) -> None:
        tensor = torch.ones(333, device=f"cuda:{comm.device}")
        comm.all_reduce(Foreign(tensor))
        assert (tensor == comm.size).all()

    run_ranks(comms, body)


CONTEXTS = """
import ctypes
import ropewalk
comms = ropewalk.init_all(2)
with ropewalk.group():
    for comm in comms:
        comm.attach(1)
cuda = ctypes.CDLL("libcuda.so.1")
for device in range(2):
    flags, active = ctypes.c_uint(), ctypes.c_int()
    assert cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) == 0
    print(active.value)
for comm in comms:
    comm.abort()
"""


def test_a_gpu_that_nobody_uses_has_no_context() -> None:
    """Though threads of the library attach GPU 1, and threads begin with GPU 0."""
    done = subprocess.run(
        [sys.executable, "-c", CONTEXTS], capture_output=True, text=True, timeout=DEADLINE_SECONDS
    )
    assert done.stdout.split() == ["0", "1"], done.stdout + done.stderr
