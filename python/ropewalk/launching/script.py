"""The shell script that starts one rank on a host.

It goes through standard input: so nothing is copied to the host, and neither the environment nor
the secret stands in a command line.

What it relies on: a POSIX shell that leads a process group (sshd makes it so; locally a new session
does), and `mktemp`. Lines on its standard input are names of signals for the whole group. At the
end of its input (the launcher ended, or the connection is lost) the group gets SIGTERM, and what is
left after a while SIGKILL.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final, Optional

REMOTE_SHELL: Final = "exec /bin/sh"
"""What ssh is asked to run; any login shell understands it."""

# Of a group whose launcher is gone: until SIGKILL, in fifths of a second.
_PATIENCE: Final = 25


def begin_mark(token: str) -> bytes:
    """On standard error before the command starts: the end of what ssh and login shells say."""
    return f"\x1eropewalk-{token}-begin\n".encode()


def end_mark(token: str) -> bytes:
    """On standard error after the command has ended; its status and a line's end follow."""
    return f"\x1eropewalk-{token}-end ".encode()


def script(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    token: str,
    folder: str,
    must_have_folder: bool,
    secret: Optional[str] = None,
) -> bytes:
    """Gives the script.

    Args:
        command: what is run, with its arguments.
        environment: variables that are set for it.
        token: random letters, for the marks.
        folder: its working directory.
        must_have_folder: whether it is an error when that is not there; else it stays in the home
            directory.
        secret: the contents of ROPEWALK_SECRET_FILE, which exists while the command runs.
    """
    # All of it is within braces: the shell reads it to the end before it begins, so that the rest
    # of standard input is the signals.
    lines = ["{", "exec 3<&0 </dev/null", "rw_dir="]
    if secret is not None:
        lines += [
            "rw_umask=$(umask); umask 077",
            "rw_base=${XDG_RUNTIME_DIR:-${TMPDIR:-/tmp}}",
            'rw_dir=$(mktemp -d "$rw_base/ropewalk-XXXXXXXXXX") || exit 125',
            f"printf '%s\\n' {shlex.quote(secret)} >\"$rw_dir/secret\" || exit 125",
            'umask "$rw_umask"',
            'export ROPEWALK_SECRET_FILE="$rw_dir/secret"',
        ]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    quoted = " ".join(map(shlex.quote, command))
    enter = f"cd {shlex.quote(folder)}"
    enter += " || exit 126" if must_have_folder else " 2>/dev/null"
    begin, end = begin_mark(token).decode(), end_mark(token).decode()
    lines += [
        # Signals that this shell catches are at their defaults in the command.
        "trap : INT TERM HUP QUIT USR1 USR2",
        "(",
        "trap '' INT TERM HUP QUIT USR1 USR2",
        "while read -r rw_signal; do",
        '[ "$rw_signal" = KILL ] && [ -n "$rw_dir" ] && rm -rf "$rw_dir"',
        'kill -s "$rw_signal" 0',
        "done",
        "sleep 0.2; kill -s TERM 0; rw_n=0",
        f"while [ $rw_n -lt {_PATIENCE} ] && kill -s 0 $$; do sleep 0.2; rw_n=$((rw_n+1)); done",
        '[ -n "$rw_dir" ] && rm -rf "$rw_dir"',
        "kill -s KILL 0",
        ") <&3 3<&- >/dev/null 2>&1 &",
        # This shell's own words about how the command ended are nobody's: its status says it.
        "exec 3<&- 4>&2 2>/dev/null",
        f"printf '%s\\n' {shlex.quote(begin.rstrip())} >&4",
        f"(exec 2>&4 4>&-; {enter}; trap - INT TERM HUP QUIT USR1 USR2; exec {quoted})",
        "rw_status=$?",
        '[ -n "$rw_dir" ] && rm -rf "$rw_dir"',
        f"printf '%s%s\\n' {shlex.quote(end)} \"$rw_status\" >&4",
        'exit "$rw_status"',
        "}",
    ]
    return ("\n".join(lines) + "\n").encode()
