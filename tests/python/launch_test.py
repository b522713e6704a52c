"""`ropewalk launch`: over a real sshd on loopback, over a stand-in for ssh, and on this host."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import pytest
import ssh_server
from ropewalk.errors import ArgumentError
from ropewalk.launching import Host, read_hosts

SECONDS = 120


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ropewalk", "launch", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def launch(*arguments: object) -> tuple[int, str, str]:
    process = start(*arguments)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


def hosts_file(folder: Path, text: str) -> Path:
    path = folder / "hosts.txt"
    path.write_text(text)
    return path


def wait_for(path: Path) -> str:
    """Its text, when it has a whole line."""
    deadline = time.monotonic() + SECONDS
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.05)
    return path.read_text()


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + SECONDS
    while Path(f"/proc/{pid}/stat").exists():
        # A zombie has ended; in a container nobody may reap it.
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.05)


# ---- files of hosts ----------------------------------------------------------------------------


def test_files_of_hosts_are_read_in_both_forms(tmp_path: Path) -> None:
    path = hosts_file(
        tmp_path, "# cluster\na slots=4\n\nme@b:2 # fast\n10.0.0.3\n[fe80::1]:3\n::2\n"
    )
    assert read_hosts(path) == [
        Host("a", 4), Host("me@b", 2), Host("10.0.0.3", 1), Host("fe80::1", 3), Host("::2", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb\na slots=2\n", "hosts.txt:3: host a stands in line 1 already"),
        ("-oProxyCommand=date\n", '"-oProxyCommand=date" is not the name of a host'),
        ("a slots=0\n", 'slots "0" is no number from 1 to 65536'),
        ("a slots=x\n", 'slots "x"'),
        ("a:2 slots=2\n", '"slots=2" is not slots=N'),
        ("a cores=2\n", '"cores=2" is not slots=N'),
        ("a;date\n", '"a;date" is not the name of a host'),
        ("# none\n", "names no host"),
    ],
)
def test_bad_files_of_hosts_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        read_hosts(hosts_file(tmp_path, text))


def test_wrong_command_lines_are_refused(tmp_path: Path) -> None:
    path = hosts_file(tmp_path, "localhost slots=2\n")
    for arguments, message in (
        (("--hosts", path, "-n", 3, "--", "true"), "the hosts have 2 slots"),
        (("--hosts", tmp_path / "none", "--", "true"), "No such file or directory"),
        (("-n", 0, "--", "true"), "must be 1 or more"),
        (("--env", "RW_NOT_SET_HERE", "--", "true"), "is not set here"),
        (("--env", "1x=2", "--", "true"), "is not the name of a variable"),
        (("--prefix", "x", "--", "true"), "rank, host or none"),
        (("--port", 70000, "--", "true"), "must be from 1 to 65534"),
    ):
        status, _, err = launch(*arguments)
        assert status == 2, err
        assert message in err


# ---- on this host --------------------------------------------------------------------------------


def test_local_ranks_get_their_variables_and_prefixes() -> None:
    script = 'echo $ROPEWALK_RANK/$ROPEWALK_WORLD_SIZE $RANK $LOCAL_RANK/$LOCAL_WORLD_SIZE "$X"'
    status, out, err = launch(
        "-n", 3, "--env", "X=it's $HOME", "--", "sh", "-c", f"{script}; printf end >&2"
    )
    assert status == 0, err
    assert sorted(out.splitlines()) == [f"[{r}] {r}/3 {r} {r}/3 it's $HOME" for r in range(3)]
    assert sorted(err.splitlines()) == [f"[{r}] end" for r in range(3)]


def test_local_ranks_meet() -> None:
    program = (
        "import numpy, ropewalk\n"
        "with ropewalk.init() as comm:\n"
        "    print(int(comm.all_reduce(numpy.full(1, comm.rank + 1.0))[0]))\n"
    )
    status, out, err = launch("-n", 3, "--", sys.executable, "-c", program)
    assert status == 0, err
    assert sorted(out.splitlines()) == ["[0] 6", "[1] 6", "[2] 6"]


def test_one_rank_in_error_ends_all() -> None:
    status, _, err = launch(
        "-n", 3, "--grace", 0.5, "--", "sh", "-c", "[ $RANK = 1 ] && exit 7; exec sleep 600"
    )
    assert status == 7
    assert "rank 1 on localhost ended with status 7" in err
    assert "SIGTERM for ranks 0, 2" not in err or "rank 0 on" not in err


def test_a_rank_that_ignores_sigterm_is_killed() -> None:
    program = "trap '' TERM; [ $RANK = 1 ] && kill -s KILL $$; while :; do sleep 1; done"
    status, _, err = launch("-n", 2, "--grace", 0.5, "--", "sh", "-c", program)
    assert status == 137
    assert "rank 1 on localhost was ended by SIGKILL" in err
    assert "SIGKILL for rank 0" in err


def test_a_command_that_is_not_there_is_told() -> None:
    status, _, err = launch("--", "/no/such/program")
    assert status == 127
    assert "/no/such/program" in err


def test_ctrl_c_is_passed_on(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, time\n"
        f"path = pathlib.Path({str(tmp_path)!r}, os.environ['RANK'])\n"
        "try:\n"
        "    path.write_text(f'{os.getpid()}\\n')\n"
        "    time.sleep(600)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    process = start("-n", 2, "--", sys.executable, "-c", program)
    for rank in ("0", "1"):
        wait_for(tmp_path / rank)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, err
    assert sorted(out.splitlines()) == ["[0] interrupted", "[1] interrupted"]


def test_the_second_ctrl_c_kills(tmp_path: Path) -> None:
    program = f"trap 'echo no' INT TERM; echo $$ >{tmp_path}/pid; while :; do sleep 0.2; done"
    process = start("--grace", 600, "--", "sh", "-c", program)
    pid = int(wait_for(tmp_path / "pid"))
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "[0] no\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "SIGINT again: killing all ranks" in err
    wait_until_gone(pid)


def test_ranks_do_not_outlive_a_killed_launcher(tmp_path: Path) -> None:
    process = start("--", "sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 600")
    pid = int(wait_for(tmp_path / "pid"))
    process.kill()
    process.communicate(timeout=SECONDS)
    wait_until_gone(pid)


# ---- over a stand-in for ssh ---------------------------------------------------------------------

# A host is a session; "refuses" says what ssh says, "hangs" nothing, "drops" loses its connection.
STAND_IN = """#!/bin/sh
while [ $# -gt 2 ]; do shift; done
[ "$1" = -G ] && { echo "hostname 127.0.0.1"; exit; }
case $1 in
refuses) echo "ssh: connect to host refuses port 22: Connection refused" >&2; exit 255;;
hangs) exec sleep 600;;
drops)
  exec 5<&0; setsid sh -c "$2" <&5 &
  sleep 2; echo "Connection to drops closed by remote host." >&2; exit 255;;
esac
echo "Welcome to $1" >&2
exec setsid -w sh -c "$2"
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    path = tmp_path / "ssh"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return path


def test_ranks_of_several_hosts(tmp_path: Path, stand_in: Path) -> None:
    path = hosts_file(tmp_path, "a slots=2\nb\nc slots=5\n")
    say = (
        'echo $RANK $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK "${ROPEWALK_RENDEZVOUS%:*}" '
        '$(stat -c %a "$ROPEWALK_SECRET_FILE") $(wc -c <"$ROPEWALK_SECRET_FILE")'
    )
    status, out, err = launch(
        "--hosts", path, "--ssh", stand_in, "-n", 4, "--prefix", "host", "--", "sh", "-c", say
    )
    assert status == 0, err
    assert err == ""  # what ssh and the host's shell say before the command is not its output
    # A name that leads to the loopback interface stays a name: each host resolves it.
    assert sorted(out.splitlines()) == [
        "[0 a] 0 0/2 0 tcp://127.0.0.1 600 65",
        "[1 a] 1 1/2 0 tcp://127.0.0.1 600 65",
        "[2 b] 2 0/1 1 tcp://127.0.0.1 600 65",
        "[3 c] 3 0/1 2 tcp://127.0.0.1 600 65",
    ]


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("refuses", "host refuses: ssh: connect to host refuses port 22: Connection refused"),
        ("hangs", "host hangs: did not begin rank 1 within 5 s"),
        ("drops", "rank 1 on drops: the connection was lost"),
    ],
)
def test_hosts_that_cannot_be_used(tmp_path: Path, stand_in: Path, host: str, message: str) -> None:
    path = hosts_file(tmp_path, f"a\n{host}\n")
    pids = tmp_path / "pids"
    pids.mkdir()
    program = f"echo $$ >{pids}/$RANK; exec sleep 600"
    status, _, err = launch(
        "--hosts", path, "--ssh", stand_in, "--connect-timeout", 5, "--grace", 1,
        "--", "sh", "-c", program,
    )  # fmt: skip
    assert status == 255
    assert message in err
    for each in pids.iterdir():
        wait_until_gone(int(wait_for(each)))


def test_a_program_ssh_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = hosts_file(tmp_path, "a\n")
    status, _, err = launch("--hosts", path, "--ssh", tmp_path / "none", "--", "true")
    assert status == 255
    assert "No such file or directory" in err


# ---- over sshd -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The option --ssh, for hosts one and two."""
    reason: Optional[str] = ssh_server.why_not()
    if reason is not None:
        pytest.skip(reason)
    with ssh_server.running(tmp_path_factory.mktemp("sshd"), ["one", "two"]) as configuration:
        yield f"ssh -F {configuration}"


def needed_by_ranks() -> list[str]:
    """Variables by which ranks over ssh find the package that is tested."""
    names = ("PYTHONPATH", "ROPEWALK_LIBRARY", "LD_LIBRARY_PATH")
    return [word for name in names if name in os.environ for word in ("--env", name)]


def test_ranks_over_sshd_meet(tmp_path: Path, sshd: str) -> None:
    path = hosts_file(tmp_path, "one slots=2\ntwo\n")
    program = (
        "import os, numpy, ropewalk\n"
        "secret = os.environ['ROPEWALK_SECRET_FILE']\n"
        "with ropewalk.init() as comm:\n"
        "    print(int(comm.all_reduce(numpy.full(1, comm.rank + 1.0))[0]), secret)\n"
    )
    status, out, err = launch(
        "--hosts", path, "--ssh", sshd, *needed_by_ranks(), "--", sys.executable, "-c", program
    )
    assert status == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert sorted(line[:2] for line in lines) == [["[0]", "6"], ["[1]", "6"], ["[2]", "6"]]
    assert not any(Path(line[2]).exists() for line in lines)


def test_a_rank_in_error_ends_those_over_sshd(tmp_path: Path, sshd: str) -> None:
    path = hosts_file(tmp_path, "one\ntwo\n")
    program = f"echo $$ >{tmp_path}/pid-$RANK; [ $RANK = 1 ] && exit 255; exec sleep 600"
    status, _, err = launch("--hosts", path, "--ssh", sshd, "--grace", 1, "--", "sh", "-c", program)
    assert status == 255
    assert "rank 1 on two ended with status 255" in err  # and not: a lost connection
    wait_until_gone(int(wait_for(tmp_path / "pid-0")))


def test_ctrl_c_reaches_ranks_over_sshd(tmp_path: Path, sshd: str) -> None:
    path = hosts_file(tmp_path, "one\n")
    program = f"trap 'echo bye; exit 3' INT; echo $$ >{tmp_path}/pid; while :; do sleep 0.1; done"
    process = start("--hosts", path, "--ssh", sshd, "--", "sh", "-c", program)
    wait_for(tmp_path / "pid")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, err
    assert out == "[0] bye\n"


def test_a_killed_launcher_ends_ranks_over_sshd(tmp_path: Path, sshd: str) -> None:
    path = hosts_file(tmp_path, "one\n")
    process = start(
        "--hosts", path, "--ssh", sshd, "--", "sh", "-c", f"echo $$ >{tmp_path}/pid; sleep 600"
    )
    pid = int(wait_for(tmp_path / "pid"))
    process.kill()
    process.communicate(timeout=SECONDS)
    # Its ssh has lost its standard input, and ends the rank.
    wait_until_gone(pid)


def test_ssh_that_is_refused_or_not_answered_is_told(tmp_path: Path, sshd: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        for number, message in ((port, "host 127.0.0.1:"), (1, "Connection refused")):
            path = hosts_file(tmp_path, "127.0.0.1\n")
            status, _, err = launch(
                "--hosts",
                path,
                "--ssh",
                f"{sshd} -p {number}",
                "--connect-timeout",
                3,
                "--",
                "true",
            )
            assert status == 255, err
            assert message in err


def test_no_key_is_told(tmp_path: Path, sshd: str) -> None:
    path = hosts_file(tmp_path, "one\n")
    status, _, err = launch(
        "--hosts", path, "--ssh", f"{sshd} -o PubkeyAuthentication=no", "--", "true"
    )
    assert status == 255
    assert "host one:" in err
    assert "Permission denied" in err or "denied" in err
