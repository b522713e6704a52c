"""Includes in src/ go one way: a layer uses those below it and none above.

Inside a layer its folders have the same rule, and a folder has one name: path, namespace, and for a
layer CMake target. Also: a public header compiles alone and includes nothing from src/.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What each layer may include besides itself.
BELOW: dict[str, set[str]] = {
    "core": set(),
    "topology": {"core"},
    "transport": {"core"},
    "plan": {"core", "topology"},
    "schedule": {"core", "topology", "plan"},
    "check_plugin": {"core", "netplugin"},
    "simgrid": {"core", "topology", "plan", "schedule"},
    "executor": {"core", "transport", "schedule"},
    "handshake": {"core", "transport", "executor"},
    "bootstrap": {"core"},
    "monitor": {"core", "executor", "bootstrap"},
    "trace": {"core", "executor", "bootstrap"},
    "link": {"core", "transport", "executor", "bootstrap"},
    "message": {"core", "transport", "executor", "bootstrap", "link"},
    "tune": {"core", "topology", "plan", "schedule", "executor"},
    "machine": {
        *("core", "topology", "plan", "transport", "schedule", "bootstrap", "link", "tune"),
    },
    "comm": {
        *("core", "topology", "plan", "transport", "schedule", "executor"),
        *("bootstrap", "link", "message", "tune", "machine", "handshake", "monitor", "trace"),
    },
    "diagnose": {"core", "transport", "schedule", "executor", "link", "tune", "comm"},
    "netplugin": {"core", "transport"},
    "profiler": {"core"},
    "capi": {
        *("core", "topology", "plan", "transport", "schedule", "executor"),
        *("bootstrap", "link", "message", "tune", "machine", "handshake", "monitor", "trace"),
        *("comm", "diagnose"),
    },
}


@dataclass(frozen=True)
class Folder:
    """What a folder inside a layer may include of that layer besides itself, and its namespaces.

    An empty `namespaces` stands for that of the path: ropewalk::layer::folder. The table is about
    libraries and programs; unit tests and fuzzers may include everything of their layer.
    """

    below: frozenset[str] = frozenset()
    namespaces: tuple[str, ...] = ()


def folder(*below: str, namespaces: tuple[str, ...] = ()) -> Folder:
    return Folder(frozenset(below), namespaces)


# One row for each folder, the layers' own ones among them. A folder that holds the host's, a GPU's
# or a block's form of what the folder above declares is in that folder's namespace.
INSIDE: dict[str, Folder] = {
    "bootstrap": folder(),
    "capi": folder(),
    # NCCL's API over the same layers: no part of capi's, which it does not include.
    "capi/nccl": folder(namespaces=("ropewalk::nccl",)),
    # libmp's API, and the COMM layer over it, over the library's public headers.
    "capi/mp": folder(namespaces=("ropewalk::mp",)),
    "capi/mpcomm": folder(namespaces=("ropewalk::mpcomm",)),
    "check_plugin": folder(),
    "comm": folder(),
    "comm/cuda": folder("comm", namespaces=("ropewalk::comm",)),
    # What all layers speak of has no prefix.
    "core": folder(
        namespaces=("ropewalk", "ropewalk::log", "ropewalk::nvtx", "ropewalk::trace_signal")
    ),
    "diagnose": folder("diagnose/probe"),
    "diagnose/cuda": folder(
        *("diagnose", "diagnose/probe"),
        namespaces=("ropewalk::diagnose", "ropewalk::diagnose::probe"),
    ),
    "diagnose/probe": folder(),
    "executor": folder(),
    "executor/block": folder("executor", namespaces=("ropewalk::executor",)),
    "executor/cuda": folder("executor", "executor/block", namespaces=("ropewalk::executor",)),
    "executor/host": folder(
        "executor", namespaces=("ropewalk::executor", "ropewalk::executor::detail")
    ),
    "handshake": folder(),
    "link": folder(),
    "link/cuda": folder("link", namespaces=("ropewalk::link",)),
    "machine": folder(),
    "message": folder(),
    "message/cuda": folder("message", namespaces=("ropewalk::message",)),
    "monitor": folder(),
    "netplugin": folder("netplugin/abi"),
    "netplugin/abi": folder(),
    "plan": folder(),
    "profiler": folder(namespaces=("ropewalk::profiler", "ropewalk::profiler::abi")),
    "schedule": folder(),
    "simgrid": folder(),
    "topology": folder(),
    "trace": folder(),
    "transport": folder(),
    # "auto" is a word of the language. It asks the providers ofi and psm2 whether they have NICs of
    # their own.
    "transport/auto": folder(
        *("transport", "transport/messaging/ofi", "transport/messaging/psm2"),
        namespaces=("ropewalk::transport", "ropewalk::transport::choosing"),
    ),
    "transport/emulated": folder("transport"),
    "transport/messaging/tcp": folder("transport", namespaces=("ropewalk::transport::tcp",)),
    # Side channels are made as the connections of tcp are. libfabric and libpsm2 take memory of
    # GPUs, which CUDA's driver says whose it is.
    "transport/messaging": folder(
        *("transport", "transport/messaging/tcp", "transport/window/device"),
        namespaces=("ropewalk::transport::messaging",),
    ),
    "transport/messaging/ofi": folder(
        *("transport", "transport/messaging", "transport/messaging/tcp"),
        "transport/window/device",
        namespaces=("ropewalk::transport::ofi",),
    ),
    "transport/messaging/psm2": folder(
        *("transport", "transport/messaging", "transport/messaging/tcp"),
        "transport/window/device",
        namespaces=("ropewalk::transport::psm2", "ropewalk::transport::psm2::abi"),
    ),
    # Made of others, by their names; patterns are those of the messaging libraries.
    "transport/rails": folder("transport", "transport/messaging"),
    # The drivers of windows are in the namespace of the engine that runs them, but for SISCI's,
    # which has many words of its own.
    "transport/window": folder("transport"),
    "transport/window/device": folder(
        "transport", "transport/window", namespaces=("ropewalk::transport::window",)
    ),
    "transport/window/shm": folder(
        "transport", "transport/window", namespaces=("ropewalk::transport::window",)
    ),
    # Shared memory shows whether two processes share a host.
    "transport/window/cuda_ipc": folder(
        *("transport", "transport/window", "transport/window/device", "transport/window/shm"),
        namespaces=("ropewalk::transport::window",),
    ),
    "transport/window/sisci": folder(
        *("transport", "transport/window", "transport/window/device"),
        namespaces=("ropewalk::transport::window", "ropewalk::transport::window::sisci"),
    ),
    "tune": folder(),
}
# Files that may include folders above their own, and why.
EXCEPTIONS: dict[str, set[str]] = {
    # The table of providers has a line for each; nothing else names one.
    "transport/registry.cc": {
        *("transport/auto", "transport/messaging/ofi", "transport/messaging/psm2"),
        *("transport/messaging/tcp", "transport/rails"),
        *("transport/window/cuda_ipc", "transport/window/shm", "transport/window/sisci"),
    },
}
# Who treats all transports alike, by what each states in its own folder (transport/provider.h).
WITHOUT_PROVIDERS = (
    *("src/comm", "src/link", "src/machine", "src/message", "src/netplugin"),
    *("src/transport/registry.cc", "src/transport/registry.h"),
)
# Layers without a library of their own, and the target into which they are built.
PROGRAMS = {
    "capi": "ropewalk",
    "check_plugin": "ropewalk-check-plugin",
    "simgrid": "ropewalk-simgrid",
}
# Public headers for kernels, and who below capi uses them.
ONE_SOURCE = {
    ("message", "ropewalk/device_window.h"),
    ("message", "ropewalk/device.cuh"),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
NAMESPACE = re.compile(r"^namespace (ropewalk[\w:]*) \{", re.M)
SUFFIXES = {".h", ".cc", ".inc", ".cu", ".cuh"}


def violations(layer: str, name: str, text: str) -> list[str]:
    """The includes of a file in `layer` that it may not have."""
    found = []
    for quote, path in INCLUDE.findall(text):
        target = path.split("/")[0]
        if target == "ropewalk":
            # The public C API is capi's to implement; nothing below knows it. What kernels of
            # programs are compiled from is one source with what the library runs.
            if layer != "capi" and (layer, path) not in ONE_SOURCE:
                found.append(f"{name} includes {path}, which only capi may")
        elif target in BELOW and "/" in path:
            if target != layer and target not in BELOW[layer]:
                found.append(f"{name} ({layer}) includes {path}: {target} is not below {layer}")
        elif quote == '"':
            found.append(f'{name} includes "{path}", which is not named from src/')
    return found


def is_test(name: str) -> bool:
    """Of a unit test or fuzzer, or of what such share."""
    path = Path(name)
    return path.stem.endswith(("_test", "_fuzz")) or "testing" in path.parts


def folder_violations(name: str, text: str) -> list[str]:
    """The includes of a file of other folders of its layer that it may not have."""
    if is_test(name):
        return []
    own = str(Path(name).parent)
    allowed = {own, *INSIDE[own].below, *EXCEPTIONS.get(name, set())}
    found = []
    for _, path in INCLUDE.findall(text):
        target = str(Path(path).parent)
        if path.split("/")[0] == own.split("/")[0] and target not in allowed:
            found.append(f"{name} includes {path}: {target} is not below {own}")
    return found


def namespace_violations(name: str, text: str) -> list[str]:
    """The namespaces that a file opens and its folder does not have."""
    path = Path(name)
    above = [str(parent) for parent in path.parents if str(parent) in INSIDE]
    if "testing" not in path.parts:
        above = above[:1]
    # What tests share may be for those of any folder above.
    allowed: set[str] = set()
    for each in above:
        allowed |= set(INSIDE[each].namespaces or ["ropewalk::" + each.replace("/", "::")])
    if "testing" in path.parts:
        allowed |= {f"{namespace}::testing" for namespace in allowed}
    return [
        f"{name}: namespace {namespace}, not one of {', '.join(sorted(allowed))}"
        for namespace in NAMESPACE.findall(text)
        if namespace not in allowed
    ]


def public_violations(name: str, text: str) -> list[str]:
    """The includes of a public header that are not of the C standard library or public."""
    standard = {"stddef.h", "stdint.h"}
    if "compat/" in name:  # whose APIs have them
        standard |= {"mp.h", "mp/device.cuh", "mpi.h", "sys/uio.h"}
    return [
        f"{name} includes {path}"
        for _, path in INCLUDE.findall(text)
        if path not in standard and not path.startswith("ropewalk/")
    ]


def sources() -> list[Path]:
    return sorted(path for path in (ROOT / "src").rglob("*") if path.suffix in SUFFIXES)


def test_every_folder_of_src_is_a_known_layer() -> None:
    assert {path.relative_to(ROOT / "src").parts[0] for path in sources()} <= set(BELOW)


def test_layers_include_only_lower_layers() -> None:
    found: list[str] = []
    for path in sources():
        relative = path.relative_to(ROOT / "src")
        found += violations(relative.parts[0], str(relative), path.read_text())
    assert not found, "\n".join(found)


def test_every_folder_has_a_row_and_every_row_a_folder() -> None:
    folders = {str(path.relative_to(ROOT / "src").parent) for path in sources()}
    assert {name for name in folders if "testing" not in Path(name).parts} == set(INSIDE)


def test_folders_include_only_lower_folders() -> None:
    found: list[str] = []
    for path in sources():
        found += folder_violations(str(path.relative_to(ROOT / "src")), path.read_text())
    assert not found, "\n".join(found)


def test_the_tables_go_one_way() -> None:
    tuple(TopologicalSorter(BELOW).static_order())
    tuple(TopologicalSorter({name: row.below for name, row in INSIDE.items()}).static_order())
    for name, row in INSIDE.items():
        layer = name.split("/")[0]
        assert all(below.split("/")[0] == layer and below in INSIDE for below in row.below), name


def test_exceptions_are_needed() -> None:
    for name, allowed in EXCEPTIONS.items():
        included = INCLUDE.findall((ROOT / "src" / name).read_text())
        assert allowed <= {str(Path(path).parent) for _, path in included}, name


def test_namespaces_are_those_of_folders() -> None:
    found: list[str] = []
    for path in sources():
        found += namespace_violations(str(path.relative_to(ROOT / "src")), path.read_text())
    assert not found, "\n".join(found)


def providers() -> set[str]:
    """The names of all transports, by the constants in their folders."""
    names: set[str] = set()
    for path in (ROOT / "src" / "transport").rglob("*.h"):
        names |= set(re.findall(r'constexpr Provider \w+\{\s*\.name = "(\w+)"', path.read_text()))
    return names


def named_providers(name: str, text: str, known: set[str]) -> list[str]:
    """The transports that a file names, but for comments."""
    found = re.findall(r'"(\w+)"', re.sub(r"//.*", "", text))
    return [f'{name} names the transport "{each}"' for each in found if each in known]


def test_no_user_of_transports_names_one() -> None:
    known = providers()
    assert known >= {"auto", "cuda_ipc", "ofi", "psm2", "rails", "shm", "sisci", "tcp"}
    known.remove("auto")  # also a value of other settings
    found: list[str] = []
    for top in WITHOUT_PROVIDERS:
        path = ROOT / top
        for each in [path] if path.is_file() else sorted(path.rglob("*")):
            if each.suffix in SUFFIXES and not is_test(str(each)):
                found += named_providers(str(each.relative_to(ROOT)), each.read_text(), known)
    assert not found, "\n".join(found)
    # Nor are NET's values listed among the settings, which would have a row to change for each.
    table = (ROOT / "src" / "core" / "settings_table.inc").read_text()
    row = re.search(r"RW_SETTING\(kNet,.*?\)\n", table, re.S)
    assert row is not None
    words = set(re.findall(r"\w+", row[0]))
    assert not words & known, row[0]
    assert named_providers("x.cc", 'if (network == "shm") {', known)


def test_targets_are_those_of_layers() -> None:
    layers = (ROOT / "cmake" / "layers.cmake").read_text()
    every = "".join(path.read_text() for path in (ROOT / "cmake").glob("*.cmake"))
    made = {
        name: set((depends or "").split())
        for name, depends in re.findall(
            r"^rw_layer\((\w+)(?:\s+DEPENDS ([\w\s]+?))?(?:\s+LIBRARIES\s[^()]*)?\)", layers, re.M
        )
    }
    assert made == {name: below for name, below in BELOW.items() if name not in PROGRAMS}
    for name, target in PROGRAMS.items():
        assert re.search(rf"add_(library|executable)\({target}\s", every), (name, target)


def test_public_headers_include_only_public_ones() -> None:
    found: list[str] = []
    for path in (ROOT / "include").rglob("*.h"):
        found += public_violations(str(path.relative_to(ROOT)), path.read_text())
    assert not found, "\n".join(found)


@pytest.mark.parametrize("language", ["c", "c++"])
def test_public_headers_compile_alone(language: str) -> None:
    for path in (ROOT / "include").rglob("*.h"):
        subprocess.run(
            ["c++", "-x", language, "-std=" + ("c11" if language == "c" else "c++20"), "-Wall"]
            + ["-Wextra", "-Werror", "-fsyntax-only", "-I", str(ROOT / "include"), "-"],
            input=f"#include <{path.relative_to(ROOT / 'include')}>\n",
            text=True,
            check=True,
        )


def test_a_bad_include_is_found() -> None:
    assert violations("core", "core/x.h", '#include "link/links.h"\n')
    assert violations("schedule", "schedule/x.cc", '#  include "transport/transport.h"\n')
    assert violations("comm", "comm/x.cc", "#include <ropewalk/ropewalk.h>\n")
    assert violations("comm", "comm/x.cc", '#include "links.h"\n')
    assert public_violations("r.h", '#include "core/types.h"\n')
    assert folder_violations("executor/x.h", '#include "executor/host/host_team.h"\n')
    assert folder_violations("transport/messaging/tcp/x.h", '#include "transport/auto/auto.h"\n')
    assert folder_violations("schedule/x.cc", '#include "schedule/testing/reference_run.h"\n')
    assert namespace_violations("plan/x.h", "namespace ropewalk::tune {\n")
    assert namespace_violations("transport/messaging/tcp/x.h", "namespace ropewalk::transport {\n")


def test_good_includes_pass() -> None:
    text = '#include <vector>\n#include "core/types.h"\n#include "link/links.h"\n'
    assert not violations("comm", "comm/x.cc", text)
    assert not violations("capi", "capi/x.cc", "#include <ropewalk/ropewalk.h>\n")
    assert not public_violations("r.h", "#include <stdint.h>\n")
    assert not folder_violations("executor/host/x.h", '#include "executor/chunk.h"\n')
    assert not folder_violations("executor/x_test.cc", '#include "executor/host/host_team.h"\n')
    assert not namespace_violations("plan/x.h", "namespace ropewalk::plan {\n")
    assert not namespace_violations("plan/testing/x.h", "namespace ropewalk::plan::testing {\n")
