"""Writes the table of rules in docs/check-plugin.md. Usage: python dev/make_rules_page.py.

The rules are those of the program, so that page and program do not differ.
tests/python/check_plugin_test.py compares them.
"""

from __future__ import annotations

from pathlib import Path

from ropewalk import plugin_check

PAGE = Path(__file__).parent.parent / "docs" / "check-plugin.md"
BEGIN = "<!-- rules: made by `make docs` -->\n"
END = "<!-- end of rules -->\n"


def table() -> str:
    """The rules as a table of Markdown."""
    lines = ["| rule | what a plugin does | what relies on it | in NCCL |", "|---|---|---|---|"]
    for rule in plugin_check.rules():
        cells = [f"`{rule['id']}`", rule["title"], rule["relies"], rule["where"]]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def page(old: str) -> str:
    """The page with the present table."""
    head, _, rest = old.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + table() + END + tail


def main() -> None:
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
