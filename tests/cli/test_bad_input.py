"""What commands refuse: one clear line, the right exit status, and nothing is changed."""

from __future__ import annotations

import math
import os
import pty
import re
import signal
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

import mirrorq
from mirrorq import MessageTooLarge
from mirrorq.cli import main
from mirrorq.cli.lines import _arriving_lines, _shown
from mirrorq.demo.ports import free_ports

from .running import COMMAND, COMMAND_S
from .test_top import read_until


def refused(status: int, *arguments: object) -> str:
    """The one line that a command ends with."""
    done: Result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == status, done.output
    line = done.stderr
    assert line.startswith("mirrorq: ")
    assert line.count("\n") == 1
    assert done.stdout == ""
    return line


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()
    }


@pytest.fixture
def endpoints() -> object:
    """Of which none is a node's: nothing there, one that is silent, one that speaks otherwise."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield (
            f"tcp://127.0.0.1:{bound.getsockname()[1]}",
            f"tcp://127.0.0.1:{silent.getsockname()[1]}",
            "ipc:///nowhere/at/all",
        )


def test_an_unknown_column_is_named_beside_those_that_there_are() -> None:
    """Before any node is asked."""
    line = refused(2, "queue", "ls", "colour", "--connect", "tcp://127.0.0.1:1")
    assert "no column 'colour': choose from name, state, master," in line


@pytest.mark.parametrize(
    "line",
    [
        "queue delete jobs 0 --yes",
        "queue delete jobs 9-3 --yes",
        "queue move jobs 9999999999999999999 --to other",
        "queue redrive jobs 1:9-3",
        "queue browse jobs --from 99999999999999999999",
        "queue browse jobs -n 99999999999999999999",
        "queue get jobs --timeout nan",
        "status --wait nan",
        "top --interval nan",
        "top --interval inf",
        "bench --scale inf",
        "forward a/q b/q --rate nan",
        "local nowhere --linger nan",
        "worker json:loads --queue q --stop-timeout nan",
        "worker json:loads --queue q --retry-delay nan",
    ],
)
def test_a_number_that_is_none_is_wrong_usage(line: str) -> None:
    """Before any node is asked: ranges that fall, sequences that no message has, nan."""
    words = line.split()
    wrong = next(word for word in words if re.search(r"\d|^nan$|^inf$", word))
    done = CliRunner().invoke(main, words, env={"MIRRORQ_URL": "tcp://127.0.0.1:1"})
    assert done.exit_code == 2, done.output
    assert wrong in done.stderr


class Piece(bytes):
    """A part of an input, which is joined to no line that has not ended."""

    def __radd__(self, before: bytes) -> bytes:
        assert not before, "the line's beginning is copied again for each piece"
        return bytes(self)


def test_the_pieces_of_a_long_line_are_joined_once() -> None:
    pieces = [b"a\n\nb", b"c", b"", b"d\ne\n", b"f", b"g"]
    given = iter([*map(Piece, filter(None, pieces)), b""])
    arrived = _arriving_lines(SimpleNamespace(read1=lambda _: next(given)), 3)
    assert list(arrived) == [[b"a", b""], [b"bcd", b"e"], [b"fg"]]


def test_what_json_has_not_is_written_as_a_text() -> None:
    headers = {"n": math.nan, "far": [math.inf, 1.5], "raw": b"a\xff"}
    assert _shown(headers) == {"n": "nan", "far": ["inf", 1.5], "raw": "a\\xff"}


def test_a_line_without_an_end_is_not_kept_whole() -> None:
    """The lines before it are published; it is refused once it is longer than any message."""
    given = iter([b"a\nbc", *[b"def"] * 10_000])
    arrived = _arriving_lines(SimpleNamespace(read1=lambda _: next(given)), 100)
    assert next(arrived) == [b"a"]
    with pytest.raises(MessageTooLarge, match="of 101 bytes is larger than message_bytes_max 100"):
        next(arrived)


@pytest.mark.parametrize("address", ["mirrorq://h?keys=/no/keys", "mirrorq://web@h"])
def test_an_address_chooses_its_keys_itself(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """$MIRRORQ_KEYS beside it is no second choice, but where its named key is looked for."""
    monkeypatch.setenv("MIRRORQ_KEYS", "/no/keys")
    assert "/no/keys" in refused(1, "queue", "ls", "--connect", address)
    typed = refused(1, "queue", "ls", "--connect", address, "--keys", "/no/keys")
    assert "/no/keys" in typed or "give them once" in typed


def test_unreachable_endpoints_are_all_named_with_why(endpoints: tuple[str, str, str]) -> None:
    nothing, silent, nowhere = endpoints
    line = refused(1, "status", "--connect", ",".join(endpoints), "--wait", "0.9")
    assert f"{nothing} (nothing listens there)" in line
    words = r"(no answer within \d\.\d s|what listens there says nothing.*)"
    assert re.search(rf"{re.escape(silent)} \({words}\)", line)
    assert f"{nowhere} (nothing listens there)" in line
    assert "Start more nodes, or correct the endpoints" in line


def test_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    """By another node, verify, force-boot and forget; its node goes on."""
    path = tmp_path / "store"
    with mirrorq.Node("a", path=path) as node:
        orders = node.queue("orders")
        orders.put(b"1").result(COMMAND_S)
        (port,) = free_ports(1)
        for arguments in (
            ("node", "run", "a", "--path", path, "--peer", f"a=tcp://127.0.0.1:{port}"),
            ("store", "verify", path),
            ("node", "force-boot", path, "--yes"),
            ("node", "forget", "b", "--path", path, "--yes"),
        ):
            line = refused(1, *arguments)
            assert str(path) in line
            assert "open in" in line
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert orders.put(b"2").result(COMMAND_S) == 2


def test_a_store_is_never_restored_over(tmp_path: Path) -> None:
    """Nor over anything else that is there: a file, an empty directory."""
    for name in ("good", "other"):
        with mirrorq.Node("a", path=tmp_path / name) as node:
            node.queue("orders").put(name.encode()).result(COMMAND_S)
    backup = tmp_path / "backup"
    done = CliRunner().invoke(main, ["store", "backup", str(tmp_path / "good"), str(backup)])
    assert done.exit_code == 0, done.output
    (tmp_path / "file").write_text("notes")
    (tmp_path / "empty").mkdir()
    before = contents(tmp_path)
    for name in ("other", "file", "empty"):
        line = refused(1, "store", "restore", backup, tmp_path / name)
        assert f"{tmp_path / name} is there already" in line
    assert contents(tmp_path) == before


def test_progress_is_drawn_on_a_terminal(endpoint: str, tmp_path: Path) -> None:
    """On standard error, beside an output that goes elsewhere."""
    lines = tmp_path / "lines"
    lines.write_bytes(b"".join(b"%d\n" % number for number in range(2000)))
    for arguments, drawn in (
        (("queue", "put", "drawn"), b"published 2000"),
        (("queue", "get", "drawn", "-n", "2000"), b"taken 2000"),
    ):
        ours, theirs = pty.openpty()
        environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
        with lines.open("rb") as given, (tmp_path / "out").open("wb") as out:
            process = subprocess.Popen(
                [*COMMAND, *arguments, "--connect", endpoint],
                stdin=given,
                stdout=out,
                stderr=theirs,
                env=environment,
            )
        os.close(theirs)
        try:
            seen = read_until(ours, None)
            assert process.wait(COMMAND_S) == 0
        finally:
            process.kill()
            process.wait()
            os.close(ours)
        assert drawn in seen
    assert (tmp_path / "out").read_bytes() == lines.read_bytes()


def test_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """Also where the command has done its work before."""
    command = [*COMMAND, "key", "new", "web", "--keys", str(tmp_path)]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=COMMAND_S)
    assert ended.returncode == 1
    assert ended.stderr == b"mirrorq: [Errno 28] No space left on device\n"
    assert "web" in (tmp_path / "keys.toml").read_text()
