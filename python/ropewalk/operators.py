"""Reduction operators: the named ones, and sums of pre-multiplied inputs."""

from __future__ import annotations

import ctypes
import struct
import weakref
from typing import TYPE_CHECKING, Union

from ropewalk._library import check, library
from ropewalk.errors import ArgumentError
from ropewalk.types import DATA_TYPES, FOREIGN_NAMES, OPERATORS, DataType, pack

if TYPE_CHECKING:
    from ropewalk.communicator import Communicator


class PreMulSum:
    """Multiplies this rank's input by a scalar, then sums over the ranks.

    Made by `Communicator.pre_mul_sum`; belongs to that communicator and one element type.
    """

    def __init__(self, comm: Communicator, scalar: float, data_type: str) -> None:
        """See Communicator.pre_mul_sum."""
        known = DATA_TYPES.get(FOREIGN_NAMES.get(data_type, data_type))
        if known is None:
            raise ArgumentError(f'unknown type "{data_type}"; known are {", ".join(DATA_TYPES)}')
        try:
            raw = pack(scalar, known)
        except (struct.error, OverflowError) as reason:
            raise ArgumentError(f"{scalar} is no {known.name}: {reason}") from None
        number = ctypes.c_int()
        check(
            library().rwRedOpCreatePreMulSum(
                ctypes.byref(number), raw, known.number, comm.c_handle
            ),
            comm.c_handle,
        )
        self._comm = comm
        self._type = known
        self._number = number.value
        self._destroy = weakref.finalize(self, _destroy, comm, number.value)

    def number_for(self, comm: Communicator, data_type: DataType) -> int:
        """The C API's number, where the operator may be used."""
        if comm is not self._comm:
            raise ArgumentError("this operator was made by another communicator")
        if data_type != self._type:
            raise ArgumentError(
                f"this operator is for {self._type.name}, the array holds {data_type.name}"
            )
        return self._number


def _destroy(comm: Communicator, number: int) -> None:
    if not comm.closed:
        library().rwRedOpDestroy(number, comm.c_handle)


Operator = Union[str, PreMulSum]


def number_of(operator: Operator, comm: Communicator, data_type: DataType) -> int:
    """The C API's number of an operator. Raises ArgumentError for an unknown name."""
    if isinstance(operator, PreMulSum):
        return operator.number_for(comm, data_type)
    if not isinstance(operator, str) or operator not in OPERATORS:
        raise ArgumentError(f'unknown operator "{operator}"; known are {", ".join(OPERATORS)}')
    return OPERATORS[operator]
