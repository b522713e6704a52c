"""Writes docs/settings.md from the table of settings. Usage: python dev/make_settings_page.py.

tests/python/docs_test.py compares the page with the table.
"""

from __future__ import annotations

from pathlib import Path

from ropewalk import settings

HEAD = """# Settings

This page is generated from the library's table of settings (`src/core/settings_table.inc`).
`ropewalk config` shows the same with the current values and their sources.

The first of these that is present gives the value:

1. `--set NAME=VALUE` on the command line; `ropewalk.settings.set` or `rwSettingSet` in a program;
2. the environment variable `ROPEWALK_NAME`;
3. a `NAME=value` line in the file `$ROPEWALK_CONF_FILE`, or else in `~/.config/ropewalk.conf`,
   or else in `/etc/ropewalk.conf`;
4. the default.

An unknown name or a malformed value is an error that names the setting. Bytes are written `8`,
`64K`, `1.5M`, `2G` (powers of 1024); durations `20us`, `250ms`, `1.5s`, `3min`, `1h`.

| setting | type | default | meaning |
| --- | --- | --- | --- |
"""


def page() -> str:
    """The page's text."""
    rows = []
    for row in settings.describe():
        name = row["name"].removeprefix("ROPEWALK_")
        kind = row["type"]
        if row["allowed"]:
            kind += ": " + row["allowed"].replace("|", ", ").replace("..", " to ")
        default = f"`{row['default']}`" if row["default"] else ""
        rows.append(
            f"| `{name}` | {kind} | {default} | {row['help'].replace('|', chr(92) + '|')} |"
        )
    return HEAD + "\n".join(rows) + "\n"


def main() -> None:
    (Path(__file__).parent.parent / "docs" / "settings.md").write_text(page())


if __name__ == "__main__":
    main()
