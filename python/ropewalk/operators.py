"""Reduction operators: the named ones, and sums of pre-multiplied inputs."""

from __future__ import annotations

import ctypes
import struct
import weakref
from typing import TYPE_CHECKING, Union

from ropewalk._library import check, library
from ropewalk.errors import ArgumentError
from ropewalk.process_bound import ProcessBound
from ropewalk.types import (
    COMPLEX_TYPES,
    DATA_TYPES,
    FOREIGN_NAMES,
    OPERATORS,
    DataType,
    pack,
)

if TYPE_CHECKING:
    from ropewalk.communicator import Communicator


class PreMulSum(ProcessBound):
    """Multiplies this rank's input by a scalar, then sums over the ranks.

    Made by `Communicator.pre_mul_sum`; belongs to that communicator and one element type.
    """

    def __init__(self, comm: Communicator, scalar: float, data_type: str) -> None:
        """See Communicator.pre_mul_sum."""
        name = FOREIGN_NAMES.get(data_type, data_type) if isinstance(data_type, str) else ""
        known = DATA_TYPES.get(name)
        if known is None:
            raise ArgumentError(f'unknown type "{data_type}"; known are {", ".join(DATA_TYPES)}')
        try:
            raw = pack(scalar, known)
        except (struct.error, OverflowError, TypeError, ValueError) as reason:
            raise ArgumentError(f"{scalar} is no {known.name}: {reason}") from None
        number = ctypes.c_int()
        make = library().rwRedOpCreatePreMulSum
        check(make(ctypes.byref(number), raw, known.number, comm.c_handle))
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

_COMPLEX_OPERATORS = ("sum", "avg")
_INSTEAD = {
    "bool": '; array.view("uint8") can: "max" is any, "min" is all',
    "int16": '; array.astype("int32") can',
    "uint16": '; array.astype("uint32") can',
}


def number_of(operator: Operator, comm: Communicator, data_type: DataType) -> int:
    """The C API's number of an operator.

    Raises:
        ArgumentError: an unknown name, or an operator that the type does not have.
    """
    if isinstance(operator, PreMulSum):
        return operator.number_for(comm, data_type)
    if not isinstance(operator, str) or operator not in OPERATORS:
        raise ArgumentError(f'unknown operator "{operator}"; known are {", ".join(OPERATORS)}')
    if data_type.name in COMPLEX_TYPES and operator not in _COMPLEX_OPERATORS:
        known = " and ".join(_COMPLEX_OPERATORS)
        raise ArgumentError(f'{data_type.name} has the operators {known}, not "{operator}"')
    if data_type.name not in (*DATA_TYPES, *COMPLEX_TYPES):
        instead = _INSTEAD.get(data_type.name, "")
        raise ArgumentError(
            f"elements of type {data_type.name} can be moved, but not reduced{instead}"
        )
    return OPERATORS[operator]
