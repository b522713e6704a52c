"""The C API's headers, what the library exports, and the prototypes that Python calls it by."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ropewalk import _library, interrupts

ROOT = Path(__file__).resolve().parent.parent.parent
HEADERS = ROOT / "include" / "ropewalk"

# What Python has no use for, and what gives no rwResult_t, whose prototypes library() sets.
NOT_BY_PROTOTYPE = {
    *("rwMeasure", "rwTopologyReadFile", "rwWindowDevice", "rwBatchDevice"),
    *("rwGetErrorString", "rwGetLastError", "rwRequestError", "rwWhyNoDevice", "rwFreeText"),
}
INT_PLACE = ctypes.POINTER(ctypes.c_int)
TYPES: dict[str, Any] = {
    "int": ctypes.c_int,
    "size_t": ctypes.c_size_t,
    "int64_t": ctypes.c_int64,
    "double": ctypes.c_double,
    "const char*": ctypes.c_char_p,
    "void*": ctypes.c_void_p,
    "const void*": ctypes.c_void_p,
    "char**": ctypes.POINTER(ctypes.c_void_p),
    "int*": INT_PLACE,
    "const int*": INT_PLACE,
    "size_t*": ctypes.POINTER(ctypes.c_size_t),
    "double*": ctypes.POINTER(ctypes.c_double),
    "const double*": ctypes.POINTER(ctypes.c_double),
    "rwDataType_t": ctypes.c_int,
    "rwRedOp_t": ctypes.c_int,
    "rwRedOp_t*": INT_PLACE,
    "rwResult_t*": INT_PLACE,
    "rwUniqueId": _library.UniqueIdStruct,
    "rwUniqueId*": ctypes.POINTER(_library.UniqueIdStruct),
    "rwComm_t": _library.Comm,
    "rwComm_t*": ctypes.POINTER(_library.Comm),
    "const rwComm_t*": ctypes.POINTER(_library.Comm),
    "rwStream_t": _library.Stream,
    "rwWindow_t": _library.Window,
    "rwWindow_t*": ctypes.POINTER(_library.Window),
    "rwMessageWindow_t": _library.MessageWindow,
    "rwMessageWindow_t*": ctypes.POINTER(_library.MessageWindow),
    "rwBatch_t": _library.Batch,
    "rwBatch_t*": ctypes.POINTER(_library.Batch),
    "rwDeviceTrigger*": ctypes.POINTER(_library.DeviceTrigger),
    "uint64_t": ctypes.c_uint64,
    "uint64_t*": ctypes.POINTER(ctypes.c_uint64),
    "void**": ctypes.POINTER(ctypes.c_void_p),
    "rwRequest_t": _library.Request,
    "rwRequest_t*": ctypes.POINTER(_library.Request),
    "rwTopology_t": _library.TopologyHandle,
    "rwTopology_t*": ctypes.POINTER(_library.TopologyHandle),
    "rwPlan_t": _library.PlanHandle,
    "rwPlan_t*": ctypes.POINTER(_library.PlanHandle),
    "const rwMeasureSpec_t*": ctypes.POINTER(_library.MeasureSpec),
    "rwMeasureResult_t*": ctypes.POINTER(_library.MeasureResult),
    "int (*)(void*)": interrupts.Check,
}


def declared() -> dict[str, list[str]]:
    """The types of each function's parameters, by its name."""
    found = {}
    for header in sorted(HEADERS.glob("*.h")):
        text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
        for name, inside in re.findall(r"RW_API [\w \*]+?\b(rw\w+)\(([^;]*)\);", text):
            assert name not in found, f"{name} is declared twice"
            parameters = " ".join(inside.split())
            # A callback as "TYPE (*)(TYPE...)": its parameters' names go, as do all others.
            parameters = re.sub(r"\(\*\w+\)\(([\w ]+\*) ?\w+\)", r"(*)(\1)", parameters)
            each = [] if parameters == "void" else parameters.split(", ")
            found[name] = [
                words if words.endswith(")") else re.sub(r" ?\b\w+$", "", words) for words in each
            ]
    return found


def test_exactly_the_declared_functions_are_exported() -> None:
    library = Path(_library.path())
    if not library.is_file():
        pytest.skip(f"{library} is looked up by the loader")
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], check=True, capture_output=True, text=True
    )
    exported = {line.split()[-1].split("@")[0] for line in listing.stdout.splitlines()}
    assert {name for name in exported if name.startswith("rw")} == set(declared())


def test_python_has_a_prototype_for_each_function() -> None:
    assert set(declared()) - set(_library._PROTOTYPES) == NOT_BY_PROTOTYPE
    assert set(_library._PROTOTYPES) <= set(declared())


@pytest.mark.parametrize("name", sorted(_library._PROTOTYPES))
def test_a_prototype_is_that_of_the_header(name: str) -> None:
    assert [TYPES[words] for words in declared()[name]] == list(_library._PROTOTYPES[name])


def test_programs_do_not_get_diagnostics() -> None:
    for header in HEADERS.glob("*.h"):
        assert "ropewalk/diagnostics.h>" not in header.read_text(), header
    in_diagnostics = re.findall(r"\b(rw\w+)\(", (HEADERS / "diagnostics.h").read_text())
    for prefix in ("rwProbe", "rwMeasure", "rwSimulate", "rwNicReport"):
        names = {name for name in declared() if name.startswith(prefix)}
        assert names and names <= set(in_diagnostics), prefix


def test_every_header_is_named_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    for header in HEADERS.glob("*.h"):
        assert f"(include/ropewalk/{header.name})" in text, header.name


def test_an_installed_package_has_the_headers() -> None:
    package = Path(_library.__file__).parent
    if not (package / "lib").is_dir():
        pytest.skip("the package lies in the source tree")
    for header in HEADERS.glob("*.h"):
        assert (package / "include" / "ropewalk" / header.name).read_bytes() == header.read_bytes()
