"""Keys of JSON stay: what docs/operations.md promises is what the commands print."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.shell_completion import BashComplete

import mirrorq
from mirrorq.cli import main
from mirrorq.monitoring.presence import ConsumerStatus

from .running import COMMAND_S, Run, run_alone

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"


def promised(what: str) -> set[str]:
    """The keys in a line of the table; there may be more."""
    section = DOCUMENT.read_text(encoding="utf-8").rpartition("## JSON")[2]
    (line,) = re.findall(rf"^\| {re.escape(what)} \| (.*) \|$", section, re.MULTILINE)
    keys = set(re.findall(r"`(\w+)`", line))
    assert len(keys) > 2
    return keys


def printed(run: Run, *arguments: str) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def test_commands_about_a_cluster_keep_their_keys(run: Run) -> None:
    """`status`, `top`, `check` and a list of all columns."""
    run("queue", "put", "keyed", given=b"a\n")
    status = printed(run, "status")
    assert promised("nodes") <= set(status["nodes"][0])
    assert promised("queues") <= set(status["queues"][0])
    top = printed(run, "top", "--interval", "0.1")
    assert promised("nodes") <= set(top["nodes"][0])
    beside = promised("queues of top, beside these")
    assert promised("queues") | beside <= set(top["queues"][0])
    listed = printed(run, "queue", "ls", *promised("queues"))
    assert set(listed[0]) == promised("queues")
    assert promised("check") <= set(printed(run, "check"))


def test_a_name_means_its_queue_and_the_shards_of_it(run: Run) -> None:
    """Not a queue whose name only begins so; and a name that no queue has is refused."""
    run("queue", "put", "tables", "--shards", "3", given=b"1\n2\n")
    run("queue", "put", "tables#not", given=b"1\n")
    shards = [f"tables#shard{number}" for number in range(3)]
    for name, of_it in (("tables", shards), (shards[1], []), ("tables#not", [])):
        info = printed(run, "queue", "info", name)
        assert (info["name"], [one["name"] for one in info["shard_status"]]) == (name, of_it)
        copies = printed(run, "store", "repair", name)["copies"]
        assert [(one["queue"], one["skipped"]) for one in copies] == [
            (one, "") for one in of_it or [name]
        ]
    run("queue", "put", "wide#not", given=b"1\n")
    for command in (("queue", "info"), ("store", "repair")):
        done = run(*command, "wide")
        assert done.returncode == 1
        assert b"no queue is named 'wide'" in done.stderr


def test_policies_keep_their_keys(run: Run) -> None:
    run("policy", "set", "keyed", "^keyed$", '{"max-length": 9}')
    (row,) = [each for each in printed(run, "policy", "ls") if each["name"] == "keyed"]
    assert promised("policy ls") == set(row)
    assert row["definition"] == {"max-length": 9}
    run("policy", "rm", "keyed")


def test_lists_of_users_keep_their_keys(run: Run) -> None:
    """The command itself is a client; a consumer's keys are those of the class."""
    found = printed(run, "client", "ls")
    assert promised("client ls") == set(found)
    assert promised("of these each") == set(found["clients"][0])
    assert promised("client consumers") == set(printed(run, "client", "consumers", "nobody"))
    assert promised("of those each") == {each.name for each in attrs.fields(ConsumerStatus)}


def test_messages_keep_their_keys(run: Run, endpoint: str) -> None:
    """What goes with a message, too; bytes that are no text are shown all the same."""
    with mirrorq.connect(endpoint) as client, client.queue("lettered") as queue:
        headers = {"trace": b"\xff\x00", "tries": 3}
        queue.put(b"\xfe!", headers=headers, message_id="m1", key="k").result(COMMAND_S)
        queue.put(b"plain").result(COMMAND_S)
    lines = run("queue", "get", "lettered", "-n", "2", "--json").stdout.splitlines()
    lettered, plain = map(json.loads, lines)
    assert promised("queue get") == set(lettered) == set(plain)
    assert lettered["headers"] == {"trace": "\\xff\x00", "tries": 3}
    assert (lettered["message_id"], lettered["key"], lettered["body"]) == ("m1", "k", "\\xfe!")
    nothing = (plain["message_id"], plain["key"], plain["headers"], plain["shard"])
    assert nothing == (None, None, {}, None)


def test_verify_keeps_its_keys(tmp_path: Path) -> None:
    with mirrorq.Node("a", path=tmp_path) as node:
        node.queue("orders").put(b"x").result(COMMAND_S)
    shown = json.loads(run_alone("store", "verify", str(tmp_path), "--json").stdout)
    assert promised("store verify") <= set(shown)


@pytest.mark.parametrize(
    ("words", "typed", "wanted"),
    [([], "wor", "worker"), (["node"], "force", "force-boot"), (["store"], "ver", "verify")],
)
def test_the_shell_completes_commands(words: list[str], typed: str, wanted: str) -> None:
    """As the documented line has it: click's own completion, of what the command is."""
    completion = BashComplete(main, {}, "mirrorq", "_MIRRORQ_COMPLETE")
    assert [item.value for item in completion.get_completions(words, typed)] == [wanted]


def test_commands_that_act_say_what_they_did(run: Run, tmp_path: Path) -> None:
    def done(*words: str, given: bytes = b"") -> Any:
        return json.loads(run(*words, "--json", given=given).stdout)

    lines = b"".join(b"%d\n" % number for number in range(25))
    assert done("queue", "put", "acted", "--batch", "10", given=lines) == {"confirmed": 25}
    assert done("queue", "delete", "acted", "3-5", "--yes") == {"deleted": 3}
    assert done("queue", "pause", "acted") == {"paused": "acted"}
    assert done("queue", "resume", "acted") == {"resumed": "acted"}
    assert done("queue", "put", "beside") == {"confirmed": 0}
    assert done("queue", "move", "acted", "1-2", "--to", "beside") == {"moved": 2}
    for span, code in (("0:3", 1), ("x", 2), ("5-", 2)):
        assert run("queue", "delete", "acted", span, "--yes").returncode == code
    assert run("queue", "delete", "acted", "9").returncode == 1
    assert done("queue", "purge", "acted") == {"purged": 20}
    assert done("queue", "redrive", "acted") == {"moved": 0}
    assert done("queue", "sync", "acted") == {"queue": "acted", "in_sync": True}
    assert done("queue", "cancel-sync", "acted") == {"queue": "acted", "cancelled": False}
    assert done("queue", "move-master", "acted", "a") == {"queue": "acted", "master": "a"}
    assert done("policy", "set", "acted", "x", '{"max-length": 1}') == {"set": "acted"}
    assert done("policy", "rm", "acted") == {"cleared": "acted"}
    assert done("node", "rebalance") == {"moved": 0}
    (node,) = done("node", "ls")
    assert node["name"] == "a"
    info = done("queue", "info", "acted")
    assert (info["name"], info["messages"], info["shard_status"]) == ("acted", 0, [])
    assert done("queue", "rm", "acted") == {"deleted": "acted"}
    made = run_alone("key", "new", "web", "--keys", str(tmp_path), "--json").stdout
    assert set(json.loads(made)) == {"name", "role", "public_key", "secret", "listed"}


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("keygen a", "key new"),
        ("node a --path x", "node run"),
        ("node --path x", "node run"),
        ("list-queues", "queue ls"),
        ("backup a b", "store backup"),
        ("verify a", "store verify"),
        ("publish q", "queue put"),
        ("transfer-master q a", "queue move-master"),
    ],
)
def test_a_command_without_its_noun_is_answered_with_it(words: str, meant: str) -> None:
    done = run_alone(*words.split())
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1
    assert f"'mirrorq {meant}'".encode() in done.stderr


def test_a_forwarder_keeps_its_keys(run: Run, endpoint: str) -> None:
    run("queue", "put", "here", given=b"a\nb\n")
    arguments = ("forward", f"{endpoint}/here", f"{endpoint}/there", "--once", "--json")
    lines = run_alone(*arguments).stdout.splitlines()
    last = json.loads(lines[-1])
    assert promised("forward") == set(last)
    assert (last["moved"], last["left"]) == (2, 0)
