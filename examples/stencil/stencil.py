"""A stencil on ranks: Jacobi iterations whose edges go to the neighbours' windows.

The forms are `host` (a put with a signal to each neighbour, a wait for each) and `batch` (the whole
exchange prepared once). Rank 0 prints the time of an iteration and the CPU time that one takes on
all ranks; the result is compared with that of one rank alone, bit by bit.

Run under a launcher, or alone: python stencil.py [--form batch] [--width N] [--height N]
[--iterations N] [--verify 0|1]. examples/stencil/main.cc is the same program in C++.
"""

from __future__ import annotations

import argparse
import time
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import ropewalk

Array = npt.NDArray[np.float64]


class Side(IntEnum):
    """A side of a block."""

    LEFT = 0
    RIGHT = 1
    UP = 2
    DOWN = 3

    @property
    def opposite(self) -> Side:
        """How the neighbour there calls the side on which this rank is."""
        return Side(self ^ 1)


# A block with a frame of one cell: the cells at the edge, and those of the frame beside them.
INNER = {
    Side.LEFT: np.s_[1:-1, 1],
    Side.RIGHT: np.s_[1:-1, -2],
    Side.UP: np.s_[1, 1:-1],
    Side.DOWN: np.s_[-2, 1:-1],
}
FRAME = {
    Side.LEFT: np.s_[1:-1, 0],
    Side.RIGHT: np.s_[1:-1, -1],
    Side.UP: np.s_[0, 1:-1],
    Side.DOWN: np.s_[-1, 1:-1],
}


class Domain:
    """One rank's block of the rectangle, of a grid that is as square as the ranks allow."""

    def __init__(self, width: int, height: int, rank: int, size: int) -> None:
        self.columns = max(c for c in range(1, size + 1) if size % c == 0 and c * c <= size)
        self.rows = size // self.columns
        self.width, self.height = width, height
        column, row = rank % self.columns, rank // self.columns
        self.x = (width * column // self.columns, width * (column + 1) // self.columns)
        self.y = (height * row // self.rows, height * (row + 1) // self.rows)
        self.neighbors: dict[Side, int] = {}
        if column > 0:
            self.neighbors[Side.LEFT] = rank - 1
        if column + 1 < self.columns:
            self.neighbors[Side.RIGHT] = rank + 1
        if row > 0:
            self.neighbors[Side.UP] = rank - self.columns
        if row + 1 < self.rows:
            self.neighbors[Side.DOWN] = rank + self.columns
        # Halos lie at multiples of it.
        self.longest_edge = max(-(-width // self.columns), -(-height // self.rows))

    def initial(self) -> Array:
        """The first values, in a frame with the border's where this block touches it."""
        x = np.arange(self.x[0] - 1, self.x[1] + 1)[None, :]
        y = np.arange(self.y[0] - 1, self.y[1] + 1)[:, None]
        field = ((x * 7 + y * 13) % 32) / 32.0
        field = np.where(y < 0, 0.5, np.where(y >= self.height, -0.25, field))
        return np.where(x < 0, 1.0, np.where(x >= self.width, -1.0, field))


def relax(now: Array, into: Array) -> None:
    """Each cell inside the frame becomes the mean of its neighbours."""
    into[1:-1, 1:-1] = 0.25 * ((now[:-2, 1:-1] + now[2:, 1:-1]) + (now[1:-1, :-2] + now[1:-1, 2:]))


class Exchange:
    """Sends the edges of a field, and has the neighbours' for it.

    Two sets of halos in turn are enough: a neighbour that sends the edges of iteration k + 2 has
    this rank's of k + 1, which left when those of k had been read.
    """

    def __init__(self, comm: ropewalk.Communicator, domain: Domain) -> None:
        self.neighbors = domain.neighbors
        self.step = domain.longest_edge
        self.window = comm.window(2 * len(Side) * self.step * 8)
        memory = self.window.memory()
        assert memory is not None  # the library allocated it
        self.halos = np.frombuffer(memory, dtype="float64").reshape(2, len(Side), self.step)
        shape = (domain.y[1] - domain.y[0], domain.x[1] - domain.x[0])
        self.edges = {
            side: np.empty(shape[0] if side <= Side.RIGHT else shape[1]) for side in self.neighbors
        }
        self.set = 0

    def offset(self, set_of_halos: int, side: Side) -> int:
        """In bytes, in every rank's part."""
        return (set_of_halos * len(Side) + side) * self.step * 8

    def pack(self, field: Array) -> None:
        """Copies the edges out."""
        for side, edge in self.edges.items():
            edge[:] = field[INNER[side]]

    def unpack(self, field: Array) -> None:
        """Copies the neighbours' edges into the frame; the other set is next."""
        for side, edge in self.edges.items():
            field[FRAME[side]] = self.halos[self.set, side, : len(edge)]
        self.set = 1 - self.set

    def run(self, field: Array) -> None:
        """Returns when the neighbours' edges are in the frame."""
        self.pack(field)
        for side, peer in self.neighbors.items():
            self.window.put_signal(self.edges[side], peer, self.offset(self.set, side.opposite))
        for peer in self.neighbors.values():
            self.window.wait_signal(peer)
        self.unpack(field)


class BatchExchange(Exchange):
    """The same, prepared once for each set of halos."""

    def __init__(self, comm: ropewalk.Communicator, domain: Domain) -> None:
        super().__init__(comm, domain)
        self.batches = [self.window.batch() for _ in range(2)]
        for number, batch in enumerate(self.batches):
            for side, peer in self.neighbors.items():
                batch.put(self.edges[side], peer, self.offset(number, side.opposite)).signal(peer)
            for peer in self.neighbors.values():
                batch.wait_signal(peer)

    def run(self, field: Array) -> None:
        """Returns when the neighbours' edges are in the frame."""
        self.pack(field)
        self.batches[self.set].launch()
        self.unpack(field)


FORMS = {"host": Exchange, "batch": BatchExchange}


def wrong_cells(comm: ropewalk.Communicator, domain: Domain, field: Array, iterations: int) -> int:
    """Cells that differ from what one rank computes alone; 0 on all but rank 0."""
    room = domain.longest_edge**2
    mine = np.zeros(room)
    cells = field[1:-1, 1:-1]
    mine[: cells.size] = cells.ravel()
    everything = np.empty(room * comm.size)
    comm.all_gather(mine, out=everything)
    if comm.rank != 0:
        return 0
    whole = Domain(domain.width, domain.height, 0, 1)
    now = whole.initial()
    into = now.copy()
    for _ in range(iterations):
        relax(now, into)
        now, into = into, now
    wrong = 0
    for rank in range(comm.size):
        its = Domain(domain.width, domain.height, rank, comm.size)
        right = now[1:-1, 1:-1][slice(*its.y), slice(*its.x)]
        found = everything[rank * room :][: right.size].reshape(right.shape)
        wrong += int((found != right).sum())
    return wrong


def main() -> None:
    """One run."""
    parser = argparse.ArgumentParser(description="A stencil on ranks.")
    parser.add_argument("--form", choices=FORMS, default="host")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--height", type=int, default=512)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--verify", type=int, default=1)
    options = parser.parse_args()
    with ropewalk.init() as comm:
        domain = Domain(options.width, options.height, comm.rank, comm.size)
        exchange = FORMS[options.form](comm, domain)
        now = domain.initial()
        into = now.copy()
        warmup = min(10, options.iterations)
        begin = cpu = 0.0
        for k in range(warmup + options.iterations):
            if k == warmup:
                comm.barrier()
                begin, cpu = time.perf_counter(), time.process_time()
            exchange.run(now)
            relax(now, into)
            now, into = into, now
        figures = np.array([time.perf_counter() - begin, time.process_time() - cpu])
        all_figures = np.empty(2 * comm.size)
        comm.all_gather(figures, out=all_figures)
        wrong = 0
        if options.verify:
            wrong = wrong_cells(comm, domain, now, warmup + options.iterations)
        exchange.window.close()
        if comm.rank == 0:
            slowest = 1e6 * all_figures[0::2].max() / options.iterations
            used = 1e6 * all_figures[1::2].sum() / options.iterations
            verdict = "right" if wrong == 0 else f"{wrong} cells are wrong"
            print(
                f"{options.form}: {options.width} x {options.height} cells on "
                f"{domain.columns} x {domain.rows} ranks: {slowest:.3f} us an iteration, "
                f"{used:.3f} us of CPU, {verdict if options.verify else 'not verified'}"
            )
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
