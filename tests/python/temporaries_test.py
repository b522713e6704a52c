"""No operation works unseen on a copy: its result is returned, or the copy is refused."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import ropewalk
from conftest import Worlds, run_ranks
from ropewalk.arrays import buffer_of

ADVICE = "use what the operation returns: this one stays as it is"


@pytest.fixture
def alone() -> Any:
    with ropewalk.init_all(1)[0] as comm:
        yield comm


def finish(made: Any, blocking: bool) -> Any:
    return made if blocking else made.wait(60)


# ---- NumPy's scalars


@pytest.mark.parametrize("blocking", [True, False])
def test_a_scalars_sum_is_returned(worlds: Worlds, blocking: bool) -> None:
    def body(comm: Any) -> None:
        for given in (np.float64(1), np.arange(3).sum(), np.float32(2), np.complex64(1 + 2j)):
            got = finish(comm.all_reduce(given, blocking=blocking), blocking)
            assert type(got) is type(given)
            assert got == given * 2

    run_ranks(worlds(2), body)


@pytest.mark.parametrize("blocking", [True, False])
def test_every_operation_with_scalars(worlds: Worlds, blocking: bool) -> None:
    def body(comm: Any) -> None:
        rank, other = comm.rank, 1 - comm.rank
        mine = np.int64(rank + 7)

        def done(made: Any) -> Any:
            return finish(made, blocking)

        assert done(comm.broadcast(mine, blocking=blocking)) == 7
        root_has = done(comm.reduce(mine, root=1, blocking=blocking))
        assert (type(root_has), root_has) == (np.int64, 15 if rank == 1 else 7)
        both = np.zeros(2, np.int64)
        assert done(comm.all_gather(mine, out=both, blocking=blocking)).tolist() == [7, 8]
        both[:] = 0
        done(comm.gather(mine, 0, out=both if rank == 0 else None, blocking=blocking))
        assert both.tolist() == ([7, 8] if rank == 0 else [0, 0])
        source = np.array([3, 4]) if rank == 0 else mine
        one = np.zeros(1, np.int64)
        got = done(comm.scatter(source, 0, out=one if rank == 0 else None, blocking=blocking))
        assert int(np.ravel(got)[0]) == rank + 3
        assert done(comm.sendrecv(mine, one, blocking=blocking)).tolist() == [other + 7]
        assert done(comm.all_reduce(mine, out=one, blocking=blocking)).tolist() == [15]
        if rank == 0:
            assert done(comm.send(mine, peer=1, blocking=blocking)) == 7
        else:
            assert done(comm.recv(np.int64(0), peer=0, blocking=blocking)) == 7
        assert mine == rank + 7

    run_ranks(worlds(2), body)


def test_a_scalar_cannot_be_out(alone: Any) -> None:
    with pytest.raises(ropewalk.ArgumentError, match=r"out is a NumPy scalar \(float64\)"):
        alone.all_reduce(np.ones(1), out=np.float64(0))


def test_a_scalars_result_would_come_after_its_group(alone: Any) -> None:
    with (
        pytest.raises(ropewalk.ArgumentError, match="not there before the group ends"),
        ropewalk.group(),
    ):
        alone.all_reduce(np.float64(1))
    with ropewalk.group():
        handle = alone.all_reduce(np.float64(1), blocking=False)
        assert alone.broadcast(np.float64(3), root=0) == 3  # only read
    assert handle.wait(60) == 1


# ---- what hands over a copy


class Holding:
    """Shows a copy by `__array_interface__`, and holds it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def __array_interface__(self) -> Any:
        self._copy = self._inner.copy()
        return self._copy.__array_interface__


class Dangling(Holding):
    """The same without a reference to it: the next object may reuse its memory."""

    @property
    def __array_interface__(self) -> Any:
        return self._inner.copy().__array_interface__


class Steady(Holding):
    """Shows the array itself."""

    @property
    def __array_interface__(self) -> Any:
        return self._inner.__array_interface__


class Image(Holding):
    """Shows bytes, as Pillow's images do."""

    @property
    def __array_interface__(self) -> Any:
        return {
            "version": 3,
            "shape": self._inner.shape,
            "typestr": self._inner.dtype.str,
            "data": self._inner.tobytes(),
        }


class DlpackOfACopy(Holding):
    __array_interface__ = property()

    def __getattribute__(self, name: str) -> Any:
        if name == "__array_interface__":
            raise AttributeError(name)
        return super().__getattribute__(name)

    def __dlpack_device__(self) -> Any:
        return self._inner.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._inner.copy().__dlpack__(**options)


@pytest.mark.parametrize("count", [1, 5, 1000, 100_000, 10_000_000])
@pytest.mark.parametrize("kind", [Holding, Dangling, DlpackOfACopy])
def test_copies_are_refused(alone: Any, kind: type, count: int) -> None:
    given = kind(np.ones(count))
    with pytest.raises(ropewalk.ArgumentError, match="hands over a copy") as caught:
        alone.all_reduce(given)
    assert ADVICE in str(caught.value)


def test_objects_that_show_their_own_memory_are_used(alone: Any) -> None:
    inner = np.ones(5)
    assert buffer_of(Steady(inner), "array", writable=True).address == inner.ctypes.data


def test_bytes_of_an_image_can_be_sent_only(alone: Any) -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert alone.broadcast(Image(pixels), out=np.zeros((3, 4), np.uint8)).tolist() == (
        pixels.tolist()
    )
    with pytest.raises(ropewalk.ArgumentError, match="hands over a copy"):
        alone.all_reduce(Image(pixels))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="__buffer__ came with Python 3.12")
def test_a_buffer_of_a_copy() -> None:
    class OfACopy:
        def __buffer__(self, flags: int) -> memoryview:
            return memoryview(bytearray(8))

    with pytest.raises(ropewalk.ArgumentError, match="hands over a copy"):
        buffer_of(OfACopy(), "array", writable=True)


# ---- advice that helps when it is followed


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.ones((4, 2))[:, 0], r"pass numpy.ascontiguousarray\(array\), and " + ADVICE),
        (np.broadcast_to(np.ones(1), (1,)), "read-only.* " + ADVICE),
        (np.ones(2, ">f8"), "foreign byte order.* " + ADVICE),
        ([1.0, 2.0], r"is a list, .*numpy.array\(array\), and " + ADVICE),
        (2.0, r"is a float, .*numpy.float64\(3\)"),
        (b"12345678", "read-only.* " + ADVICE),
    ],
)
def test_the_advice_says_where_the_result_is(alone: Any, given: Any, words: str) -> None:
    with pytest.raises(ropewalk.ArgumentError, match=words):
        alone.all_reduce(given)


def test_advice_followed(worlds: Worlds) -> None:
    def body(comm: Any) -> None:
        given = np.ones((4, 2))[:, 0]
        assert comm.all_reduce(np.ascontiguousarray(given)).tolist() == [2.0] * 4

    run_ranks(worlds(2), body)


def test_advice_for_out(alone: Any) -> None:
    with pytest.raises(ropewalk.ArgumentError, match="out is not contiguous; pass another one, as"):
        alone.all_reduce(np.ones(4), out=np.ones((4, 2))[:, 0])


def test_advice_for_read_only_arguments(alone: Any) -> None:
    with pytest.raises(ropewalk.ArgumentError) as caught:
        alone.all_reduce(np.ones((4, 2))[:, 0], out=np.ones(4))
    assert str(caught.value) == "array is not contiguous; pass numpy.ascontiguousarray(array)"


def test_a_series_of_pandas(alone: Any) -> None:
    pandas = pytest.importorskip("pandas")
    series = pandas.Series([1.0, 2.0])
    with pytest.raises(ropewalk.ArgumentError, match=r"pandas Series.*to_numpy\(copy=True\)"):
        alone.all_reduce(series)
    with pytest.raises(ropewalk.ArgumentError, match=r"pandas Series.*pass array.to_numpy\(\)$"):
        alone.all_reduce(series, out=np.zeros(2))
    assert alone.all_reduce(series.to_numpy(copy=True)).tolist() == [1.0, 2.0]


def test_a_series_without_pandas(alone: Any) -> None:
    """What the test above needs pandas for."""
    series = types.new_class("Series")
    series.__module__ = "pandas.core.series"
    with pytest.raises(ropewalk.ArgumentError, match=r"pandas Series.*to_numpy\(copy=True\)"):
        alone.all_reduce(series())


def test_arrays_of_arrow_never_change() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    with pytest.raises(ropewalk.ArgumentError, match="read-only"):
        buffer_of(pyarrow.array([1.0, 2.0]), "array", writable=True)


def test_lazy_tensors() -> None:
    torch = pytest.importorskip("torch")
    given = torch.ones(3, dtype=torch.complex64)
    for lazy, words in (
        (given.conj(), r"conjugated view; pass tensor.resolve_conj\(\), and " + ADVICE),
        (given.conj().imag, r"not contiguous; pass tensor.contiguous\(\), and " + ADVICE),
        (torch._neg_view(torch.ones(3)), r"negated view; pass tensor.resolve_neg\(\), and"),
        (torch.ones(3).to_sparse(), r"pass tensor.to_dense\(\)"),
        (torch.ones(3, device="meta"), "is on meta"),
        (torch.ones(4, 2).t(), r"pass tensor.contiguous\(\), and " + ADVICE),
    ):
        with pytest.raises(ropewalk.ArgumentError, match=words):
            buffer_of(lazy, "array", writable=True)
    zero_dimensional = torch.tensor(1.5)
    assert buffer_of(zero_dimensional, "array", writable=True).count == 1


def test_tensors_without_memory() -> None:
    torch = pytest.importorskip("torch")
    fake = pytest.importorskip("torch._subclasses.fake_tensor")
    with fake.FakeTensorMode():
        given = torch.ones(3)
    with pytest.raises(ropewalk.ArgumentError, match="memory of its own"):
        buffer_of(given, "array", writable=True)
