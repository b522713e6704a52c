#!/usr/bin/env python3
"""NCCL's functions that a wheel's libraries need, or have, by name: for tests/python/nccl_names.

dev/wheel_names.py imports FILE.whl   undefined symbols, which the loader binds (PyTorch, CuPy)
dev/wheel_names.py texts FILE.whl     names as text, which are looked up at run time (XLA)
dev/wheel_names.py exports FILE.whl   defined symbols (NVIDIA's own library)

Prints a comment that says where they are from, then one name a line. To get a wheel without its
dependencies: `pip download --no-deps PACKAGE==VERSION`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import zipfile
from pathlib import Path

NAME = r"p?nccl[A-Z]\w*"
WHAT = {
    "imports": "undefined symbols that nm -D finds in",
    "texts": "names that stand as text in",
    "exports": "symbols that nm -D finds defined in",
}


def symbols(library: Path, which: str) -> set[str]:
    """Names in the table of dynamic symbols; `which` as nm calls them."""
    listing = subprocess.run(
        ["nm", "-D", which, str(library)], check=False, capture_output=True, text=True
    )
    names = {line.split()[-1].split("@")[0] for line in listing.stdout.splitlines() if line.split()}
    return {name for name in names if re.fullmatch(NAME, name)}


def texts(library: Path) -> set[str]:
    """Whole texts in the file."""
    found = re.findall(rb"\0(" + NAME.encode() + rb")(?=\0)", library.read_bytes())
    return {name.decode() for name in found}


def names_in(library: Path, kind: str) -> set[str]:
    if kind == "texts":
        return texts(library)
    return symbols(library, "--undefined-only" if kind == "imports" else "--defined-only")


def names_of(wheel: Path, kind: str) -> dict[str, set[str]]:
    """By library of the wheel: the names, where it has any."""
    found = {}
    with zipfile.ZipFile(wheel) as files, tempfile.TemporaryDirectory() as folder:
        for member in files.namelist():
            if not re.search(r"\.so(\.\d+)*$", member):
                continue
            library = Path(files.extract(member, folder))
            names = names_in(library, kind)
            library.unlink()
            if names:
                found[member] = names
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind", choices=sorted(WHAT))
    parser.add_argument("wheel", type=Path)
    arguments = parser.parse_args()
    found = names_of(arguments.wheel, arguments.kind)
    if not found:
        parser.error(f"{arguments.wheel}: no library with such names")
    print(f"# {arguments.wheel.name}: {WHAT[arguments.kind]} {', '.join(sorted(found))}")
    for name in sorted(set().union(*found.values())):
        print(name)


if __name__ == "__main__":
    main()
