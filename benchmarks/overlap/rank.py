"""One rank of `benchmarks/overlap/run`: a matrix product of PyTorch beside collectives of one
libnccl.so.2. Reads commands from standard input, one JSON object a line, and answers each so.

    rank.py LIBRARY RANK RANKS ID_FILE [windows | in_place]

With `windows` data lies in ncclMemAlloc's memory, registered as symmetric windows; with `in_place`,
too, and each rank's input of an all-gather is its part of the output.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

FLOAT32, SUM = 7, 0
SYMMETRIC = 1  # NCCL_WIN_COLL_SYMMETRIC
WARMUPS = 3
# While one side is timed the other has so much more to do that it goes on until the end.
MARGIN = 2.5
# Of each kind that the GPU has not done yet, at most. A stream's queue holds some thousand entries,
# of which a collective may take ten; a full one stops the host, and so what it feeds the other.
IN_FLIGHT = 24


class Feeder:
    """Hands steps over to a stream, so many ahead of the GPU at most."""

    def __init__(self, step: Callable[[], None], total: int, mark: Callable[[], Any]) -> None:
        """@param mark: makes an event behind what was handed over last"""
        self._step, self._mark = step, mark
        self.left = total
        self._ahead: deque[Any] = deque()

    def feed(self) -> bool:
        """One step, if there is one left and room for it; never waits."""
        while self._ahead and self._ahead[0].query():
            self._ahead.popleft()
        if self.left == 0 or len(self._ahead) >= IN_FLIGHT:
            return False
        self._step()
        self._ahead.append(self._mark())
        self.left -= 1
        return True


def feed_all(*feeders: Feeder) -> None:
    """In turn, until none has a step left."""
    while any(feeder.left for feeder in feeders):
        for feeder in feeders:
            feeder.feed()


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Floats:
    """Memory as PyTorch takes it."""

    def __init__(self, address: int | None, count: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "<f4", "data": (address, False), "version": 3,
        }  # fmt: skip


class Collectives:
    """The operations that are timed, on one communicator."""

    def __init__(self, library: str, rank: int, ranks: int, id_file: Path) -> None:
        self.nccl = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self.nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self.nccl.ncclGetLastError.restype = ctypes.c_char_p
        self.rank, self.ranks = rank, ranks
        unique = UniqueId()
        if rank == 0:
            self._check(self.nccl.ncclGetUniqueId(ctypes.byref(unique)), "ncclGetUniqueId")
            part = id_file.with_suffix(".part")
            part.write_bytes(bytes(unique))
            part.rename(id_file)
        else:
            end = time.monotonic() + 60
            while not id_file.exists():
                if time.monotonic() > end:
                    raise RuntimeError("rank 0 has made no id in 60 s")
                time.sleep(0.01)
            unique = UniqueId.from_buffer_copy(id_file.read_bytes())
        self.comm = ctypes.c_void_p()
        self._check(
            self.nccl.ncclCommInitRank(ctypes.byref(self.comm), ranks, unique, rank),
            "ncclCommInitRank",
        )

    def window(self, count: int) -> Any:
        """Floats that all ranks have registered alike. They stay to the end."""
        memory, window = ctypes.c_void_p(), ctypes.c_void_p()
        size = ctypes.c_size_t(4 * count)
        self._check(self.nccl.ncclMemAlloc(ctypes.byref(memory), size), "ncclMemAlloc")
        self._check(
            self.nccl.ncclCommWindowRegister(
                self.comm, memory, size, ctypes.byref(window), SYMMETRIC
            ),
            "ncclCommWindowRegister",
        )
        if not window.value:
            raise RuntimeError("ncclCommWindowRegister: the library makes no windows here")

        return torch.as_tensor(Floats(memory.value, count), device="cuda")

    def own(self, data: Any, out: Any) -> Any:
        """This rank's input: in place its part of an all-gather's output."""
        if data is not out:
            return data
        part = out.numel() // self.ranks
        return out[self.rank * part : (self.rank + 1) * part]

    def enqueue(self, operation: str, data: Any, out: Any, stream: Any) -> None:
        count = ctypes.c_size_t(data.numel())
        part = ctypes.c_size_t(data.numel() // self.ranks)
        source = ctypes.c_void_p(self.own(data, out).data_ptr())
        target = ctypes.c_void_p(out.data_ptr())
        on = ctypes.c_void_p(stream.cuda_stream)
        if operation == "all_reduce":
            result = self.nccl.ncclAllReduce(source, target, count, FLOAT32, SUM, self.comm, on)
        elif operation == "all_gather":
            result = self.nccl.ncclAllGather(source, target, part, FLOAT32, self.comm, on)
        elif operation == "reduce_scatter":
            result = self.nccl.ncclReduceScatter(source, target, part, FLOAT32, SUM, self.comm, on)
        elif operation == "broadcast":
            result = self.nccl.ncclBroadcast(source, target, count, FLOAT32, 0, self.comm, on)
        else:
            raise RuntimeError(f"unknown operation {operation}")
        self._check(result, operation)

    def wrong(self, operation: str, data: Any, out: Any, stream: Any) -> int:
        """Elements of one more operation's result that are wrong."""
        with torch.cuda.stream(stream):
            out.fill_(-1)
            self.own(data, out).fill_(self.rank + 1)
        self.enqueue(operation, data, out, stream)
        stream.synchronize()
        n = self.ranks
        total = n * (n + 1) // 2
        length = out.numel() // n * n
        if operation == "all_reduce":
            return int((out != total).sum())
        if operation == "reduce_scatter":
            return int((out[: length // n] != total).sum())
        if operation == "broadcast":
            return int((out != 1).sum())
        parts = out[:length].view(n, -1)
        return sum(int((parts[r] != r + 1).sum()) for r in range(n))

    def close(self) -> None:
        self._check(self.nccl.ncclCommDestroy(self.comm), "ncclCommDestroy")

    def _check(self, result: int, what: str) -> None:
        if result != 0:
            text = self.nccl.ncclGetErrorString(result) or b""
            last = self.nccl.ncclGetLastError(None) or b""
            raise RuntimeError(f"{what}: {text.decode()}: {last.decode()}")


class Bench:
    """Products on one stream, collectives on another one."""

    def __init__(
        self, collectives: Collectives, windows: str, matrix: int, size: int, operation: str
    ) -> None:
        self.collectives, self.operation = collectives, operation
        # The product has the stream of lower priority: what carries data must not wait for it.
        self.computes = torch.cuda.Stream(priority=0)
        self.carries = torch.cuda.Stream(priority=-1)
        self.a = torch.randn(matrix, matrix, device="cuda", dtype=torch.bfloat16)
        self.b = torch.randn(matrix, matrix, device="cuda", dtype=torch.bfloat16)
        self.c = torch.empty_like(self.a)
        count = size // 4 // collectives.ranks * collectives.ranks
        if windows:
            self.out = collectives.window(count)
            self.data = self.out if windows == "in_place" else collectives.window(count)
            self.data.fill_(1)
        else:
            self.data = torch.ones(count, device="cuda")
            self.out = torch.empty_like(self.data)
        # Loads the kernels that are used later: that may wait for collectives under way, which wait
        # for this rank.
        self.product()
        for whole in (self.data, self.out):
            whole.fill_(1)
            int((whole != 1).sum())
        torch.cuda.synchronize()

    def product(self) -> None:
        with torch.cuda.stream(self.computes):
            torch.matmul(self.a, self.b, out=self.c)

    def collective(self) -> None:
        self.collectives.enqueue(self.operation, self.data, self.out, self.carries)

    def barrier(self) -> None:
        """All ranks are here, and their GPUs idle."""
        torch.cuda.synchronize()
        self.collective()
        torch.cuda.synchronize()

    def alone(self, step: Callable[[], None], stream: Any, count: int) -> float:
        """Seconds of one of `count` steps."""
        for _ in range(WARMUPS):
            step()
        self.barrier()
        return self._timed(step, stream, count)

    def feeder(self, step: Callable[[], None], stream: Any, total: int) -> Feeder:
        def mark() -> Any:
            event = torch.cuda.Event()
            event.record(stream)
            return event

        return Feeder(step, total, mark)

    def beside(
        self,
        step: Callable[[], None],
        stream: Any,
        count: int,
        other: Callable[[], None],
        other_stream: Any,
        more: int,
    ) -> float:
        """The same while `more` of the other are under way."""
        self.barrier()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        steps = self.feeder(step, stream, count)
        others = self.feeder(other, other_stream, more)
        while others.feed():
            pass
        begin.record(stream)
        while steps.left:
            steps.feed()
            others.feed()
        end.record(stream)
        while not end.query():
            others.feed()
        feed_all(others)  # as many on all ranks
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / count

    @staticmethod
    def _timed(step: Callable[[], None], stream: Any, count: int) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record(stream)
        for _ in range(count):
            step()
        end.record(stream)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / count

    def measure(self, counts: dict[str, int]) -> dict[str, float]:
        """@param counts: of products and of collectives, the same on all ranks."""
        products, collectives = counts["products"], counts["collectives"]
        result = {
            "product_alone_s": self.alone(self.product, self.computes, products),
            "collective_alone_s": self.alone(self.collective, self.carries, collectives),
        }
        result["product_beside_s"] = self.beside(
            *(self.product, self.computes, products),
            *(self.collective, self.carries, int(collectives * MARGIN)),
        )
        result["collective_beside_s"] = self.beside(
            *(self.collective, self.carries, collectives),
            *(self.product, self.computes, int(products * MARGIN)),
        )
        # As many of each as take equally long alone: how long both take together.
        self.barrier()
        begin = time.perf_counter()
        feed_all(
            self.feeder(self.product, self.computes, products),
            self.feeder(self.collective, self.carries, collectives),
        )
        torch.cuda.synchronize()
        result["together_s"] = time.perf_counter() - begin
        result["wrong"] = self.collectives.wrong(self.operation, self.data, self.out, self.carries)
        return result


def serve(library: str, rank: int, ranks: int, id_file: Path, windows: str) -> None:
    torch.cuda.set_device(rank)
    collectives = Collectives(library, rank, ranks, id_file)
    print(json.dumps({"ready": True}), flush=True)
    bench: Bench | None = None
    key: tuple[int, int, str] | None = None
    for line in sys.stdin:
        command = json.loads(line)
        wanted = (command["matrix"], command["size"], command["operation"])
        if bench is None or key != wanted:
            bench, key = Bench(collectives, windows, *wanted), wanted
        if command["do"] == "times":  # of one each, so that the caller can choose counts
            found = {
                "product_s": bench.alone(bench.product, bench.computes, 5),
                "collective_s": bench.alone(bench.collective, bench.carries, 5),
            }
        else:
            found = bench.measure(command["counts"])
        print(json.dumps(found), flush=True)
    torch.cuda.synchronize()
    collectives.close()


if __name__ == "__main__":
    try:
        windows = (sys.argv[5:] or [""])[0]
        serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), windows)
    except Exception as error:  # noqa: BLE001 - the parent shows it
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        os._exit(1)
