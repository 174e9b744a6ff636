"""The demo on a few thousand lines, as its user runs it, and the check that it rests on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mirrorq.demo import ports
from mirrorq.demo.check import check, failover_ms
from mirrorq.demo.records import Confirmed, Taken
from mirrorq.demo.source import digest, number_of, rows
from mirrorq.errors import ConfigError

DEMO = [sys.executable, "-m", "mirrorq", "demo"]
DEMO_S = 240
LINES = 5_000


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """A file of lines; some are equal, some are empty, some are no UTF-8."""
    path = tmp_path / "lines"
    path.write_bytes(
        b"".join(b"line %d \xff\n" % (n % 97) if n % 5 else b"\n" for n in range(LINES))
    )
    return path


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the demo; its temporary files go to a directory that is looked at later."""
    place = tmp_path / "temporary"
    place.mkdir()
    return subprocess.Popen(
        [*DEMO, *arguments],
        env={**os.environ, "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def last_lines(output: str) -> dict[str, int]:
    """The plain lines at the end."""
    pairs = (line.rpartition(": ") for line in output.splitlines()[-6:])
    return {name: int(value) for name, _, value in pairs}


def assert_nothing_is_left(tmp_path: Path) -> None:
    """No directory, and no process that was started in it."""
    place = tmp_path / "temporary"
    assert list(place.iterdir()) == []
    assert processes_of(place) == []


def processes_of(place: Path) -> list[str]:
    """Command lines of processes that name a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(place) in command:
            found.append(command)
    return found


@pytest.mark.real
@pytest.mark.parametrize(
    "arguments",
    [
        ("--kill", "master"),
        ("--kill", "none", "--nodes", "1"),
        pytest.param(("--kill", "none"), marks=pytest.mark.soak),
        pytest.param(("--kill", "mirror"), marks=pytest.mark.soak),
        pytest.param(("--kill", "all"), marks=pytest.mark.soak),
        pytest.param(("--kill", "master", "--nodes", "2"), marks=pytest.mark.soak),
    ],
    ids=" ".join,
)
def test_nothing_is_lost(tmp_path: Path, lines: Path, arguments: tuple[str, ...]) -> None:
    """Whatever is killed: all is confirmed and comes out, the last lines say so, status 0."""
    with start(tmp_path, "--input", str(lines), *arguments) as demo:
        output, errors = demo.communicate(timeout=DEMO_S)
    assert demo.returncode == 0, output + errors
    said = last_lines(output)
    assert list(said) == [
        "confirmed",
        "lost",
        "duplicates flagged",
        "duplicates unflagged",
        "failover ms",
        "messages per second",
    ]
    assert (said["confirmed"], said["lost"], said["duplicates unflagged"]) == (LINES, 0, 0)
    assert (said["failover ms"] > 0) == ("none" not in arguments)
    assert said["messages per second"] > 0
    assert_nothing_is_left(tmp_path)


@pytest.mark.real
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)]
)
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM in the middle: no process and no directory is left."""
    endless = tmp_path / "endless"
    endless.write_bytes(b"line\n" * 300_000)
    with start(tmp_path, "--input", str(endless), "--kill", "none") as demo:
        wait_for_traffic(tmp_path / "temporary")
        demo.send_signal(number)
        output, errors = demo.communicate(timeout=DEMO_S)
    assert demo.returncode == 1, output + errors
    assert "Traceback" not in errors
    assert_nothing_is_left(tmp_path)


def wait_for_traffic(place: Path) -> None:
    """Until the consumer has written something down."""
    deadline = time.monotonic() + DEMO_S
    pause = threading.Event()
    while not any(path.stat().st_size for path in place.glob("*/taken")):
        assert time.monotonic() < deadline
        pause.wait(0.01)


@pytest.mark.real
def test_a_peer_that_fails_ends_the_demo(tmp_path: Path) -> None:
    """A peer that dies though nobody planned it: status 1, its name, nothing left."""
    endless = tmp_path / "endless"
    endless.write_bytes(b"line\n" * 300_000)
    place = tmp_path / "temporary"
    with start(tmp_path, "--input", str(endless), "--kill", "none") as demo:
        wait_for_traffic(place)
        os.kill(pid_of_peer(place, "b"), signal.SIGKILL)
        _, errors = demo.communicate(timeout=DEMO_S)
    assert demo.returncode == 1
    assert "mirrorq: process b ended with status -9" in errors
    assert_nothing_is_left(tmp_path)


def pid_of_peer(place: Path, name: str) -> int:
    """The process whose directory is that of a peer."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(place) in command and f'"name": "{name}"' in command:
            return int(process.name)
    raise AssertionError(f"no process of peer {name}")


# --- The source and the check ------------------------------------------------------------


def test_messages_name_their_rows(lines: Path) -> None:
    """Each message carries its number, so that equal lines are told apart."""
    made = list(rows(lines, 100))
    assert [number_of(body) for body in made] == list(range(100))
    assert len(set(made)) == 100
    assert number_of(b"something else") == -1
    assert number_of(b'{"number":,') == -1


def test_the_flights_are_all_there() -> None:
    """Without pandas: the first flight, as JSON."""
    try:
        first = next(rows(None, 1, flights=True))
    except ConfigError as error:
        pytest.skip(str(error))
    assert first.startswith(b'{"number":0,"year":"2013","month":"1","day":"1","dep_time":"517"')


@pytest.mark.real
def test_the_demo_has_orders_of_its_own() -> None:
    """After a plain install: the same in each run, each another."""
    orders = list(rows(None, None))
    assert orders == list(rows(None, None))
    assert len(set(orders)) == len(orders) == 50_000
    assert [number_of(order) for order in orders[::9999]] == list(range(0, 50_000, 9999))
    done = subprocess.run(
        [*DEMO, "--flights", "--input", __file__], capture_output=True, text=True, timeout=DEMO_S
    )
    assert (done.returncode, "one of them" in done.stderr) == (2, True)


SOURCE = [b"a", b"b", b"c"]
ALL_CONFIRMED = [Confirmed(0, 3, 1, 10)]


def taken(number: int, *, redelivered: bool = False, sequence: int | None = None) -> Taken:
    """A delivery of a row, as it should be unless told otherwise."""
    place = number + 1 if sequence is None else sequence
    return Taken(number, place, redelivered, digest(SOURCE[number]))


def test_the_check_accepts_what_is_right() -> None:
    """Each once, and one again that says so."""
    found = check(SOURCE, ALL_CONFIRMED, [taken(0), taken(1), taken(1, redelivered=True), taken(2)])
    assert found.is_good
    assert (found.confirmed, found.delivered, found.duplicates_flagged) == (3, 3, 1)


@pytest.mark.parametrize(
    ("deliveries", "what"),
    [
        ([taken(0), taken(2)], "lost"),
        ([taken(0), taken(1), taken(2), taken(1)], "duplicates_unflagged"),
        (
            [taken(0), taken(1), taken(2), taken(1, redelivered=True, sequence=4)],
            "duplicates_unflagged",
        ),
        ([taken(0), taken(2), taken(1)], "misplaced"),
        ([taken(0), taken(1), taken(2, sequence=7)], "misplaced"),
        ([taken(0), taken(1), taken(2), Taken(2, 3, True, b"?" * 16)], "altered"),
        ([taken(0), taken(1), taken(2), Taken(-1, 4, False, b"?" * 16)], "altered"),
    ],
)
def test_the_check_finds_what_is_wrong(deliveries: list[Taken], what: str) -> None:
    """Losses, silent repeats, messages stored twice, disorder and damage: each is counted."""
    found = check(SOURCE, ALL_CONFIRMED, deliveries)
    assert getattr(found, what) == 1
    assert not found.is_good


def test_failover_is_the_longest_silence() -> None:
    """The dead master's last confirms, still under way at the kill, do not count."""
    assert failover_ms([90, 101, 103, 340, 350, 360], killed_ms=100) == 240
    assert failover_ms([90, 95], killed_ms=100) == 0


# --- Ports ---------------------------------------------------------------------------------

TAKES_PORTS = """
import sys
from mirrorq.demo import ports

ports._LEAST, ports._first_outgoing = int(sys.argv[1]), lambda: int(sys.argv[1]) + 200
print(*ports.free_ports(60), flush=True)
sys.stdin.read()
"""


@pytest.mark.real
def test_no_port_is_given_to_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nobody listens on it yet; nor twice to one process."""
    least = random.randrange(10_000, 30_000)
    monkeypatch.setattr(ports, "_LEAST", least)
    monkeypatch.setattr(ports, "_first_outgoing", lambda: least + 200)
    other = subprocess.Popen(
        [sys.executable, "-c", TAKES_PORTS, str(least)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        assert len(theirs) == 60
        ours = [ports.free_ports(1)[0] for _ in range(30)]
        assert len(set(ours)) == 30
        assert not theirs & set(ours)
    finally:
        other.communicate()
