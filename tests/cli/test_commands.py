"""The commands as a user runs them: processes, standard input and output, exit status."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.kit import free_endpoint, until

import mirrorq
from mirrorq.cli.node import LOOK_S

from .running import COMMAND, COMMAND_S, Run, run_alone, start_node


@pytest.mark.smoke
def test_lines_go_through_a_queue(run: Run) -> None:
    """Lines that are published come out in order, are acked, and are gone then."""
    lines = b"one\ntwo\n\nlast without an end"
    assert run("queue", "put", "through", given=lines).stdout == b"confirmed: 4\n"
    assert run("queue", "get", "through", "-n", "3").stdout == b"one\ntwo\n\n"
    # A message may take more than that second.
    rest = until(lambda: run("queue", "get", "through", "--all", "--timeout", "1").stdout)
    assert rest == b"last without an end\n"
    over = run("queue", "get", "through", "--timeout", "2")
    assert over.returncode == 1
    assert over.stdout == b""
    assert over.stderr == b"mirrorq: only 0 of 1 messages came within 2.0 s\n"


def test_a_nodes_modules_are_no_garbage_collectors_concern(tmp_path: Path) -> None:
    """Of a process that is a node alone nothing that was loaded is walked while it runs."""
    program = """
import contextlib, gc, sys, threading
from mirrorq.cli import main

@contextlib.contextmanager
def told():
    gc.collect()
    print("walked:", len(gc.get_objects()) < gc.get_freeze_count() / 10)
    print("rare:", gc.get_threshold()[2] > usual[2])
    over = threading.Event()
    over.set()
    yield over

usual = gc.get_threshold()
sys.modules["mirrorq.cli.node"]._told_to_end = told
main(["node", "run", "a", "--path", "store"], standalone_mode=False)
print("frozen:", gc.get_freeze_count(), gc.get_threshold() == usual)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=COMMAND_S)
    assert b"walked: True" in done.stdout, done
    assert b"rare: True" in done.stdout, done
    assert done.stdout.endswith(b"frozen: 0 True\n"), done


def test_who_browses_takes_nothing(run: Run) -> None:
    """Delivery counts stay; a page may begin anywhere."""
    run("queue", "put", "shown", given=b"\xff stays\n" + b"x" * 100 + b"\nlast\n")
    seen = [
        json.loads(line) for line in run("queue", "browse", "shown", "--json").stdout.splitlines()
    ]
    assert [one["sequence"] for one in seen] == [1, 2, 3]
    text = run("queue", "browse", "shown", "--from", "2", "-n", "1").stdout.decode().splitlines()
    assert text[0].split("\t") == ["sequence", "put", "returned", "key", "died in", "body"]
    assert len(text) == 2
    assert text[1].startswith("2\t")
    assert text[1].endswith("\t0\t-\t-\t" + "x" * 60)
    again = json.loads(run("queue", "get", "shown", "--json").stdout)
    assert again["body"] == "\\xff stays"
    assert again["redelivered"] is False
    assert again["sequence"] == 1


def test_dead_letters_say_where_they_died(run: Run) -> None:
    """And why."""
    run("policy", "set", "dying", "^dying$", '{"message-ttl": 1, "dead-letter-queue": "dead"}')
    run("queue", "put", "dying", given=b"1\n")
    until(lambda: b"\tdying by expired\t1" in run("queue", "browse", "dead").stdout)


def test_lists_are_text_or_json(run: Run, endpoint: str) -> None:
    """`queue ls` and `status` say the same as tabs between columns and as JSON."""
    run("queue", "put", "listed", given=b"a\nb\n")
    rows = json.loads(run("queue", "ls", "--json", "name", "messages", "master").stdout)
    assert {"name": "listed", "messages": 2, "master": "a"} in rows
    listed = run("queue", "ls", "name", "arguments").stdout.decode().splitlines()
    assert all(json.loads(line.split("\t")[1]) == {} for line in listed[1:])
    text = run("queue", "ls", "name", "messages").stdout.decode().splitlines()
    assert text[0] == "name\tmessages"
    assert "listed\t2" in text
    shown = json.loads(run("status", "--json").stdout)
    assert [node["endpoint"] for node in shown["nodes"]] == [endpoint]
    assert "listed" in [queue["name"] for queue in shown["queues"]]
    assert b"\t" + endpoint.encode() + b"\tyes" in run("status").stdout


def test_a_sharded_queue_is_one_row(run: Run) -> None:
    """With --shards one more for each; its name takes all commands, its shards' names too."""
    assert run("queue", "put", "wide", "--shards", "3", given=b"a\nb\n").stdout == b"confirmed: 2\n"
    rows = json.loads(run("queue", "ls", "--json", "name", "shards").stdout)
    assert {"name": "wide", "shards": 3} in rows
    assert not [row for row in rows if "#" in row["name"]]
    names = run("queue", "ls", "--shards", "name").stdout.decode().split()
    assert [name for name in names if name.startswith("wide")] == [
        "wide",
        *(f"wide#shard{number}" for number in range(3)),
    ]
    refused = run("queue", "put", "wide", "--shards", "4", given=b"c\n")
    assert refused.returncode == 1
    assert b"shards=3, not 4" in refused.stderr
    refused = run("queue", "move-master", "wide", "a")
    assert b"'wide#shard0'" in refused.stderr
    assert run("queue", "get", "wide", "-n", "2").stdout == b"a\nb\n"
    assert run("queue", "rm", "wide").stdout == b"deleted: wide\n"
    assert b"wide" not in run("queue", "ls", "--shards", "name").stdout


def test_queues_are_purged_and_deleted(run: Run) -> None:
    """`queue purge` says how many it ended; `queue rm` obeys its conditions."""
    run("queue", "put", "doomed", given=b"a\nb\nc\n")
    refused = run("queue", "rm", "doomed", "--if-empty")
    assert refused.returncode == 1
    assert refused.stderr.count(b"\n") == 1
    assert run("queue", "purge", "doomed").stdout == b"purged: 3\n"
    assert run("queue", "rm", "doomed", "--if-empty").stdout == b"deleted: doomed\n"
    names = run("queue", "ls", "name").stdout.decode().split()
    assert "doomed" not in names


def test_dead_letters_are_moved_back(run: Run, endpoint: str) -> None:
    """`redrive` says how many went back to where they had ended."""
    definition = json.dumps({"dead-letter-queue": "letters"})
    assert run("policy", "set", "letters", "^tried$", definition).returncode == 0
    run("queue", "put", "letters", given=b"")
    run("queue", "put", "tried", given=b"a\nb\n")
    with mirrorq.connect(endpoint) as client, client.queue("letters") as letters:
        with client.queue("tried") as tried:
            for _ in range(2):
                tried.get(timeout=20).nack(requeue=False).result(20)
        found = [letters.get(timeout=20).body for _ in range(2)]
        assert sorted(found) == [b"a", b"b"]
    browse = ("queue", "browse", "letters", "--json", "--where", "x-death-reason=rejected")
    shown = [json.loads(line) for line in run(*browse).stdout.splitlines()]
    assert len(shown) == 2
    assert run(*browse, "--where", "x-death-queue=other").stdout == b""
    assert b"give FIELD=TEXT" in run(*browse, "--where", "=x").stderr
    first = str(shown[0]["sequence"])
    assert run("queue", "redrive", "letters", first, "--count", "1").returncode == 2
    assert run("queue", "redrive", "letters", first).stdout == b"moved: 1\n"
    assert run("queue", "redrive", "letters", "--count", "1").stdout == b"moved: 1\n"
    assert run("queue", "get", "tried").stdout.strip() in (b"a", b"b")


def test_lines_go_into_a_queue_as_it_is(run: Run, endpoint: str) -> None:
    """Who publishes need not know how it was declared; who says how is held to it."""
    with mirrorq.connect(endpoint) as client, client.queue("passing", durable=False):
        assert run("queue", "put", "passing", given=b"a\n").stdout == b"confirmed: 1\n"
        assert (
            run("queue", "put", "passing", "--transient", given=b"b\n").stdout == b"confirmed: 1\n"
        )
        done = run("queue", "put", "passing", "--shards", "2", given=b"c\n")
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr.startswith(b"mirrorq: queue 'passing' ")


@pytest.mark.parametrize("option", ["--timeout", "--wait"])
def test_a_time_below_0_is_wrong_usage(run: Run, option: str) -> None:
    done = run("queue", "get", "orders", option, "-1")
    assert done.returncode == 2
    assert b"-1.0 is not in the range" in done.stderr


@pytest.mark.parametrize("command", ["get", "info", "purge", "rm", "redrive"])
def test_unknown_queues_are_refused_in_one_line(run: Run, command: str) -> None:
    """A queue that is not there: exit status 1 and one line on standard error."""
    done = run("queue", command, "nowhere")
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.startswith(b"mirrorq: no queue is named 'nowhere'")
    assert done.stderr.count(b"\n") == 1


def test_unreachable_nodes_are_named() -> None:
    """No node answers: exit status 1 and one line that names what was tried."""
    endpoint = free_endpoint()
    done = run_alone("status", "--connect", endpoint, "--wait", "0.3")
    assert done.returncode == 1
    assert endpoint.encode() in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("queue", "ls", "colour", "--connect", "tcp://127.0.0.1:1"),
        ("queue", "get", "--connect", "tcp://127.0.0.1:1"),
        ("node", "run", "a", "--path", "x", "--peer", "a"),
        ("node", "run", "a", "--path", "x", "--peer", "a=b", "--peer", "a=c"),
        ("demo", "--kill", "everybody"),
        ("nonsense",),
    ],
)
def test_wrong_usage_is_status_2(arguments: tuple[str, ...]) -> None:
    """Wrong arguments are told apart from failures."""
    assert run_alone(*arguments).returncode == 2


def test_every_command_has_help() -> None:
    """The list of commands, and a text of each, without any cluster."""
    listed = run_alone("--help").stdout.decode()
    names = [line.split()[0] for line in listed.partition("Commands:")[2].splitlines() if line]
    assert "bench" in names
    for name in names:
        assert run_alone(name, "--help").returncode == 0


def test_endpoints_come_from_the_environment(run: Run, endpoint: str) -> None:
    """MIRRORQ_URL stands for --connect."""
    environment = {**os.environ, "MIRRORQ_URL": endpoint}
    done = subprocess.run(
        [*COMMAND, "status"], env=environment, capture_output=True, timeout=COMMAND_S
    )
    assert done.returncode == 0


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.smoke), signal.SIGINT]
)
def test_a_node_ends_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM and Ctrl-C close a node: status 0, and its store can be opened again. Ctrl-Z for
    longer than it looks after itself does not, once it goes on."""
    endpoint = free_endpoint()
    for is_stopped in (number == signal.SIGTERM, False):
        with start_node(tmp_path, endpoint) as node:
            if is_stopped:
                node.send_signal(signal.SIGSTOP)
                time.sleep(LOOK_S + 0.2)
                node.send_signal(signal.SIGCONT)
                assert run_alone("status", "--connect", endpoint).returncode == 0
            node.send_signal(number)
            output, _ = node.communicate(timeout=COMMAND_S)
        assert node.returncode == 0
        assert output == b"node a has ended\n"


def test_a_second_node_on_one_path_is_refused(tmp_path: Path) -> None:
    """Two nodes on one directory: the second ends with status 1 and says why."""
    endpoint = free_endpoint()
    with start_node(tmp_path, endpoint) as node:
        second = run_alone("node", "run", "a", "--path", str(tmp_path / "store"))
        node.terminate()
    assert second.returncode == 1
    assert b"mirrorq: " in second.stderr


def test_a_waiting_get_ends_on_ctrl_c(run: Run, endpoint: str) -> None:
    """Ctrl-C while waiting for a message: no traceback, and no message is lost by it."""
    run("queue", "put", "interrupted", given=b"")
    arguments = ["queue", "get", "interrupted", "-n", "2", "--timeout", "60", "--connect", endpoint]
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as waiting:
        run("queue", "put", "interrupted", given=b"first\n")
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == b"first\n"
        waiting.send_signal(signal.SIGINT)
        _, errors = waiting.communicate(timeout=COMMAND_S)
    assert waiting.returncode == 1
    assert b"Traceback" not in errors
    run("queue", "put", "interrupted", given=b"second\n")
    assert run("queue", "get", "interrupted").stdout == b"second\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_publish_says_how_far_it_came(
    run: Run, endpoint: str, number: signal.Signals
) -> None:
    """Ctrl-C while more lines are awaited: what was read is confirmed, and that is said."""
    arguments = ["queue", "put", "endless", "--connect", endpoint]
    with subprocess.Popen(
        [*COMMAND, *arguments], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as publishing:
        assert publishing.stdin is not None
        publishing.stdin.write(b"1\n2\n3\n")
        publishing.stdin.flush()
        until(lambda: run("queue", "browse", "endless", "--json").stdout)
        publishing.send_signal(number)
        publishing.wait(COMMAND_S)
        assert publishing.stderr is not None
        errors = publishing.stderr.read()
    assert publishing.returncode == 1
    assert errors == b"mirrorq: interrupted; all 3 lines that were read are confirmed\n"
    assert run("queue", "get", "endless", "-n", "3").stdout == b"1\n2\n3\n"


@pytest.mark.parametrize(
    ("words", "closed", "says"),
    [
        ("queue put closed", "<&-", "standard input is closed"),
        ("queue get closed", ">&-", "standard output is closed"),
        ("queue ls", ">&-", "standard output is closed"),
        ("queue browse closed --json", ">&-", "standard output is closed"),
    ],
)
def test_a_stream_that_is_closed_is_told(
    run: Run, endpoint: str, words: str, closed: str, says: str
) -> None:
    """As some programs start others; nothing is taken that cannot be written."""
    run("queue", "put", "closed", given=b"kept\n")
    line = shlex.join([*COMMAND, *words.split(), "--connect", endpoint])
    done = subprocess.run(
        ["sh", "-c", f"exec {line} {closed}"], capture_output=True, timeout=COMMAND_S, check=False
    )
    assert done.returncode == 1
    assert done.stderr.decode().startswith(f"mirrorq: {says}")
    assert run("queue", "get", "closed").stdout == b"kept\n"


def test_a_refused_publish_says_how_far_it_came(run: Run) -> None:
    """A queue with a limit: those that fit are published, and the error says what was not."""
    definition = '{"max-length": 5, "overflow": "reject-publish"}'
    assert run("policy", "set", "small", "^full$", definition).returncode == 0
    given = b"".join(b"%d\n" % number for number in range(1, 9))
    done = run("queue", "put", "full", given=given)
    assert done.returncode == 1
    told = b"line 6 was refused first, 5 of the 8 lines that were read are confirmed\n"
    assert b"max-length 5" in done.stderr
    assert done.stderr.endswith(told)
    assert done.stderr.count(b"\n") == 1
    done = run("queue", "put", "full", given=b"9\n")
    assert b"line 1 was refused first, 0 of the 1 lines" in done.stderr
    assert run("queue", "get", "full", "--all", "--timeout", "1").stdout == b"1\n2\n3\n4\n5\n"


def test_bench_measures_a_cluster(tmp_path: Path) -> None:
    """`mirrorq bench --json` gives every figure, and leaves nothing behind."""
    done = run_alone("bench", "--scale", "0.01", "--path", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert len(figures) == 6
    assert all(figure["value"] > 0 for figure in figures.values())
    assert list(tmp_path.iterdir()) == []


def test_nodes_join_and_are_forgotten(tmp_path: Path) -> None:
    """`node run --join` makes them nodes of the cluster; `node forget` refuses one that runs."""
    endpoint = free_endpoint()
    processes = [start_node(tmp_path, endpoint)]

    def command(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return run_alone(*arguments, "--connect", endpoint)

    def wait_for(*wanted: str) -> None:
        until(lambda: names(command("status", "--json")) == list(wanted), wanted)

    try:
        for name in "bc":
            arguments = ["node", "run", name, "--path", str(tmp_path / name), "--join", endpoint]
            with (tmp_path / f"{name}.log").open("wb") as log:
                process = subprocess.Popen(
                    [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=log
                )
            processes.append(process)
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(f"node {name} runs on tcp://127.0.0.1:".encode())
        wait_for("a", "b", "c")
        refused = command("node", "forget", "c")
        assert refused.returncode == 1
        assert b"node c is alive" in refused.stderr
        assert b"has no node 'nobody'" in command("node", "forget", "nobody").stderr
        processes[2].kill()
        until(lambda: command("node", "forget", "c").stdout == b"forgotten: c\n")
        wait_for("a", "b")
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def names(status: subprocess.CompletedProcess[bytes]) -> list[str]:
    """Of the nodes that a `status --json` names."""
    return [node["name"] for node in json.loads(status.stdout)["nodes"]] if status.stdout else []
