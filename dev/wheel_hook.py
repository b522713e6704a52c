"""Builds the libraries and puts them, with those that they need, into the wheel.

They are libropewalk.so, the network plugin libnccl-net-ropewalk.so under all of its names, the
profiler plugin libnccl-profiler-ropewalk.so, the program ropewalk-check-plugin, libmp.so.2,
libmpcomm.so.2 and, where there is CUDA, libnccl.so.2. Where SimGrid is, ropewalk-simgrid comes too,
but not SimGrid itself: it would be the largest part of the wheel by far, for one command that does
without. Of a build of the library alone (RW_LIBRARY_ONLY, the first
stage of the Makefile) the wheel has no more than that. The C API's headers are in the package's
folder include.

The package is pure Python over ctypes, so that one wheel per platform serves every Python version.
RW_BUILD_DIR names a build folder to use, as the Makefile does; otherwise build/wheel is made. (Not
ROPEWALK_BUILD_DIR: variables of that prefix are settings, and unknown ones are errors.)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Part of every system that the wheel is for: glibc and GCC's runtime. The rest comes along.
SYSTEM_LIBRARIES = (
    "libc.so",
    "libm.so",
    "libpthread.so",
    "libdl.so",
    "librt.so",
    "ld-linux",
    "libstdc++.so",
    "libgcc_s.so",
    "linux-vdso",
)

# Opened at run time where they are there: no link names them.
OPENED_LIBRARIES = ("libhwloc.so.15",)

# Other names of the network plugin, and the folder below lib/ that each is in: every NCCL that
# finds a libnccl-net.so loads it, even without a setting.
PLUGIN_LINKS = {
    "librccl-net-ropewalk.so": "",
    "libnccl-net.so": "nccl-net/",
    "librccl-net.so": "nccl-net/",
}

# The wheel already has the libraries that it needs, except SimGrid.
SIMGRID_PROGRAM = "ropewalk-simgrid"


def opened_libraries() -> list[Path]:
    """The files of libraries that are opened at run time, as far as this system has them."""
    cache = subprocess.run(["/sbin/ldconfig", "-p"], check=False, capture_output=True, text=True)
    found = []
    for line in cache.stdout.splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.split(" ")[0] in OPENED_LIBRARIES:
            found += [Path(path), *needed_libraries(Path(path))]
    return found


def needed_libraries(library: Path) -> list[Path]:
    """The files of the shared libraries that `library` loads and that the wheel must bring."""
    listing = subprocess.run(["ldd", str(library)], check=True, capture_output=True, text=True)
    found = []
    for line in listing.stdout.splitlines():
        name, _, rest = line.strip().partition(" => ")
        if name.startswith(SYSTEM_LIBRARIES) or not rest:
            continue
        if rest.startswith("not found"):
            raise FileNotFoundError(f"{library} needs {name}, which is not on this system")
        found.append(Path(rest.split(" (")[0]))
    return found


def build(root: Path, folder: Path, stage: Path) -> list[Path]:
    """Configures where needed, builds and installs the libraries; returns their files."""
    if not (folder / "build.ninja").exists():
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DRW_TESTS=OFF"]
        subprocess.run(
            ["cmake", "-S", str(root), "-B", str(folder), "-G", "Ninja", *options], check=True
        )
    subprocess.run(["ninja", "-C", str(folder), "runtime"], check=True)
    shutil.rmtree(stage, ignore_errors=True)
    for component in ("runtime", "simgrid"):
        subprocess.run(
            ["cmake", "--install", str(folder), "--prefix", str(stage), "--component", component],
            check=True,
        )
    names = (
        "libropewalk.so.0",
        "libnccl-net-ropewalk.so",
        "libnccl-profiler-ropewalk.so",
        "libnccl.so.2",
        "libmp.so.2",
        "libmpcomm.so.2",
        "ropewalk-check-plugin",
        SIMGRID_PROGRAM,
        *PLUGIN_LINKS,
    )
    libraries = [path for name in names for path in stage.rglob(name)]
    for path in libraries:
        if path.name in PLUGIN_LINKS:  # wheels hold no links
            target = path.resolve()
            path.unlink()
            shutil.copy2(target, path)
    if not libraries:
        raise FileNotFoundError(f"nothing was installed into {stage}")
    return libraries


class RopewalkBuildHook(BuildHookInterface[Any]):
    """Called by hatchling for a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds libraries and headers and names the platform. An editable install builds nothing."""
        if version == "editable":
            return
        root = Path(self.root)
        folder = Path(os.environ.get("RW_BUILD_DIR", root / "build" / "wheel"))
        libraries = build(root, folder, folder / "wheel-stage")
        needed = [
            path
            for library in libraries
            if library.name != SIMGRID_PROGRAM
            for path in needed_libraries(library)
        ]
        for path in (*libraries, *needed, *opened_libraries()):
            # The file itself under the name that the loader asks for.
            place = f"ropewalk/lib/{PLUGIN_LINKS.get(path.name, '')}{path.name}"
            build_data["force_include"][str(path.resolve())] = place
        for header in (root / "include" / "ropewalk").rglob("*.*h"):
            name = header.relative_to(root / "include")
            build_data["force_include"][str(header)] = f"ropewalk/include/{name}"
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
