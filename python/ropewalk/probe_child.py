"""The process in which `ropewalk.doctor` tries paths: python -m ropewalk.probe_child.

Reads a JSON list of requests on standard input, and prints a JSON object a line, in order: what
rwProbe answers, or {"error": TEXT}. It may crash or hang with the path that it tries; the process
that started it sees to that.
"""

from __future__ import annotations

import json
import sys

from ropewalk import _library, errors


def main() -> None:
    """Tries each path."""
    for request in json.load(sys.stdin):
        try:
            answer = _library.text_of(_library.library().rwProbe, json.dumps(request).encode())
        except errors.Error as error:
            answer = json.dumps({"error": str(error)})
        print(answer, flush=True)


if __name__ == "__main__":
    main()
