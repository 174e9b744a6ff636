"""`mirrorq policy set`, `rm` and `ls`, as a user runs them."""

from __future__ import annotations

import json

import pytest

from .running import Run


def test_policies_are_set_listed_and_cleared(run: Run) -> None:
    """The definition is JSON; the list is text or JSON; a queue's row names its policy."""
    run("queue", "put", "ruled", given=b"x\n")
    done = run("policy", "set", "two", "^ruled$", '{"max-length": 2}', "--priority", "7")
    assert (done.returncode, done.stdout) == (0, b"set: two\n")
    (row,) = json.loads(run("policy", "ls", "--json").stdout)
    assert row == {
        "name": "two",
        "pattern": "^ruled$",
        "definition": {"max-length": 2},
        "priority": 7,
        "apply_to": "queues",
    }
    text = run("policy", "ls").stdout.decode().splitlines()
    assert text[1] == 'two\t^ruled$\t{"max-length": 2}\t7\tqueues'
    rows = json.loads(run("queue", "ls", "--json", "name", "policy").stdout)
    assert {"name": "ruled", "policy": "two"} in rows
    for _ in range(2):
        assert run("policy", "rm", "two").stdout == b"cleared: two\n"
    assert json.loads(run("policy", "ls", "--json").stdout) == []


@pytest.mark.parametrize("definition", ['{"ha-mode": "some"}', '{"ha-modes": "all"}', "[1]"])
def test_a_wrong_definition_is_refused_in_one_line(run: Run, definition: str) -> None:
    """Exit status 1, one line on standard error, and no such policy."""
    done = run("policy", "set", "wrong", "x", definition)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"mirrorq: policy 'wrong': ")
    assert done.stderr.count(b"\n") == 1
    assert b"wrong" not in run("policy", "ls").stdout


def test_what_is_no_json_is_wrong_usage(run: Run) -> None:
    """Exit status 2, as for any argument that cannot be read."""
    assert run("policy", "set", "wrong", "x", "{ha-mode: all}").returncode == 2


def test_masters_are_transferred_and_levelled(run: Run) -> None:
    """On a cluster of one: it is the master already; what cannot be is refused in one line."""
    run("queue", "put", "led", given=b"x\n")
    done = run("queue", "move-master", "led", "a")
    assert (done.returncode, done.stdout) == (0, b"master of led: a\n")
    assert run("node", "rebalance").stdout == b"moved: 0\n"
    for arguments in (("led", "b"), ("nowhere", "a")):
        refused = run("queue", "move-master", *arguments)
        assert (refused.returncode, refused.stdout) == (1, b"")
        assert refused.stderr.count(b"\n") == 1
