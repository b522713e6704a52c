"""Prints requirements of pyproject.toml, one per word of the shell.

Usage: python dev/requirements.py GROUP...  with the groups build-system, project, or an extra.
`pip install .[test]` would build the package too, which the Makefile does apart.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def requirements(text: str, group: str) -> list[str]:
    """One list of pyproject.toml. Python 3.9 and 3.10 have no TOML reader; the lists are plain."""
    section, key = {
        "build-system": ("build-system", "requires"),
        "project": ("project", "dependencies"),
    }.get(group, ("project.optional-dependencies", group))
    body = re.search(rf"^\[{re.escape(section)}\]\n(.*?)(?=^\[|\Z)", text, re.M | re.S)
    found = re.search(rf"^{re.escape(key)} = \[(.*?)\]", body.group(1) if body else "", re.M | re.S)
    if not found:
        raise SystemExit(f"dev/requirements.py: pyproject.toml has no {section} {key}")
    return re.findall(r'"([^"]+)"', found.group(1))


def main() -> None:
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    for group in sys.argv[1:]:
        print("\n".join(requirements(text, group)))


if __name__ == "__main__":
    main()
