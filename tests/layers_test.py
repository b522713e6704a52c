"""Includes in src/ go one way: a layer uses those below it and none above.

Also: a public header stands alone and takes nothing from src/.
"""

from __future__ import annotations

import re
import subprocess
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
    "bootstrap": {"core"},
    "link": {"core", "transport", "executor", "bootstrap"},
    "tune": {"core", "plan", "schedule", "executor"},
    "comm": {"core", "plan", "transport", "schedule", "executor", "bootstrap", "link", "tune"},
    "diagnose": {"core", "transport", "schedule", "executor", "link", "tune", "comm"},
    "netplugin": {"core", "transport"},
    "capi": {
        *("core", "topology", "plan", "transport", "schedule", "executor"),
        *("bootstrap", "link", "tune", "comm", "diagnose"),
    },
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
SUFFIXES = {".h", ".cc", ".inc", ".cu", ".cuh"}


def violations(layer: str, name: str, text: str) -> list[str]:
    """The includes of a file in `layer` that it may not have."""
    found = []
    for quote, path in INCLUDE.findall(text):
        target = path.split("/")[0]
        if target == "ropewalk":
            # The public C API is capi's to implement; nothing below knows it.
            if layer != "capi":
                found.append(f"{name} includes {path}, which only capi may")
        elif target in BELOW and "/" in path:
            if target != layer and target not in BELOW[layer]:
                found.append(f"{name} ({layer}) includes {path}: {target} is not below {layer}")
        elif quote == '"':
            found.append(f'{name} includes "{path}", which is not named from src/')
    return found


def public_violations(name: str, text: str) -> list[str]:
    """The includes of a public header that are not of the C standard library or public."""
    standard = {"stddef.h", "stdint.h"}
    return [
        f"{name} includes {path}"
        for _, path in INCLUDE.findall(text)
        if path not in standard and not path.startswith("ropewalk/")
    ]


def sources() -> list[Path]:
    return sorted(path for path in (ROOT / "src").rglob("*") if path.suffix in SUFFIXES)


def test_every_folder_of_src_is_a_known_layer() -> None:
    assert {path.relative_to(ROOT / "src").parts[0] for path in sources()} <= set(BELOW)


def test_layers_include_only_what_is_below() -> None:
    found: list[str] = []
    for path in sources():
        relative = path.relative_to(ROOT / "src")
        found += violations(relative.parts[0], str(relative), path.read_text())
    assert not found, "\n".join(found)


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


def test_good_includes_pass() -> None:
    text = '#include <vector>\n#include "core/types.h"\n#include "link/links.h"\n'
    assert not violations("comm", "comm/x.cc", text)
    assert not violations("capi", "capi/x.cc", "#include <ropewalk/ropewalk.h>\n")
    assert not public_violations("r.h", "#include <stdint.h>\n")
