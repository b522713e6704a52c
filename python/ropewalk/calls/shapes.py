"""Elements that a rank's buffers of an operation hold, and its bytes as nccl-tests counts them."""

from __future__ import annotations

from typing import Final

from ropewalk.calls.records import Record

BYTES: Final = {
    **dict.fromkeys(("int8", "uint8", "float8_e4m3", "float8_e5m2", "bool", "byte"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
PYTORCH_TYPES: Final = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int8": "Char",
    "uint8": "Byte",
    "int16": "Short",
    "uint16": "UInt16",
    "int32": "Int",
    "uint32": "UInt32",
    "int64": "Long",
    "uint64": "UInt64",
    "bool": "Bool",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
    "float8_e4m3": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
}
"""As PyTorch names them in its traces and dumps."""


def input_elements(record: Record, rank: int, ranks: int) -> int:
    """Of the input buffer."""
    operation, count = record["operation"], int(record["count"])
    if operation in ("barrier", "receive") or (operation == "broadcast" and rank != record["root"]):
        return 0
    if operation == "scatter":
        return count * ranks if rank == record["root"] else 0
    return count * ranks if operation in ("reduce_scatter", "all_to_all") else count


def output_elements(record: Record, rank: int, ranks: int) -> int:
    """Of the output buffer."""
    operation, count = record["operation"], int(record["count"])
    if operation in ("barrier", "send") or (operation == "reduce" and rank != record["root"]):
        return 0
    if operation == "gather":
        return count * ranks if rank == record["root"] else 0
    return count * ranks if operation in ("all_gather", "all_to_all") else count


def message_bytes(record: Record, ranks: int) -> int:
    """The size as nccl-tests counts it: of the larger of a rank's two buffers."""
    whole = record["operation"] in (
        "reduce_scatter",
        "all_to_all",
        "all_gather",
        "gather",
        "scatter",
    )
    return int(record["count"]) * (ranks if whole else 1) * BYTES.get(record["type"] or "", 0)


def bus_factor(operation: str, ranks: int) -> float:
    """What algbw is multiplied by for busbw, as nccl-tests has it."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0
