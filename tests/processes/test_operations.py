"""Backup, restore and force-boot, with nodes that are processes of their own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from mirrorq.cli import main

from .cluster import Cluster, until


def mirrorq(*arguments: object) -> Result:
    """The command, in this process: it has no store open."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def done(*arguments: object) -> str:
    """What a command says that is to succeed."""
    result = mirrorq(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: object) -> str:
    """The one line of a command that is refused."""
    result = mirrorq(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def bodies(cluster: Cluster, node: str) -> list[str]:
    return [body for _, body in cluster.ask(node, "browse", count_max=100_000)]


def confirmed(cluster: Cluster, node: str, producing: int) -> int:
    report: dict[str, Any] = cluster[node].ask("produced", number=producing)
    assert report["wrong"] == []
    return int(report["confirmed"])


def test_a_backup_under_traffic_holds_what_was_confirmed(cluster: Cluster, tmp_path: Path) -> None:
    """Of a node that runs and publishes. Put back after the node is lost, all that was confirmed
    before the backup began is there, in order; then it goes on."""
    cluster.name_all("a")
    cluster.start("a")
    cluster.open("orders", "a")
    cluster.ask("a", "fill", count=2000, size=2000)
    producing = cluster.ask("a", "produce", count=1_000_000, pause_s=0.001)
    until(lambda: confirmed(cluster, "a", producing) > 50)
    before = confirmed(cluster, "a", producing)
    assert "good: node a" in done("store", "backup", tmp_path / "a", tmp_path / "saved" / "monday")
    assert f"{tmp_path / 'saved' / 'monday'} is there already" in refused(
        "store", "backup", tmp_path / "a", tmp_path / "saved" / "monday"
    )
    until(lambda: confirmed(cluster, "a", producing) > before)
    cluster.kill("a")
    done("store", "verify", tmp_path / "saved" / "monday")
    assert "is there already" in refused(
        "store", "restore", tmp_path / "saved" / "monday", tmp_path / "a"
    )
    shutil.rmtree(tmp_path / "a")
    assert "the only node" in done(
        "store", "restore", tmp_path / "saved" / "monday", tmp_path / "a"
    )
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["monday"]
    done("store", "verify", tmp_path / "a")

    cluster.start("a")
    cluster.open("orders", "a", passive=True)
    cluster.wait_master("a", on="a")
    found = bodies(cluster, "a")
    assert found[:2000] == [str(number) for number in range(2000)]
    numbers = [int(body) for body in found[2000:]]
    assert numbers == list(range(1_000_000, 1_000_000 - len(numbers), -1))
    assert len(numbers) >= before
    cluster.ask("a", "put", body="goes on")
    assert bodies(cluster, "a")[-1] == "goes on"


def test_a_node_restored_from_a_backup_joins_its_cluster_anew(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Backed up under traffic, then lost: the cluster knows more than the backup, and the node is
    given all of it. The store as it was, though copied whole, is none of the cluster's."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    producing = cluster.ask("a", "produce", count=100_000, pause_s=0.001)
    until(lambda: confirmed(cluster, "a", producing) > 20)
    done("store", "backup", tmp_path / "b", tmp_path / "backup")
    until(lambda: confirmed(cluster, "a", producing) > 100)
    cluster["a"].ask("stop_producing", number=producing)
    cluster.kill("b")
    shutil.rmtree(tmp_path / "b")
    assert "node b joins a, c again" in done(
        "store", "restore", tmp_path / "backup", tmp_path / "b"
    )
    cluster.start("b")
    cluster.open("orders", "b", passive=True)
    cluster.wait_in_sync(2, on="b")
    until(lambda: not cluster["a"].ask("produced", number=producing)["open"])
    report = cluster["a"].ask("produced", number=producing)
    expected = [str(100_000 - at) for at in range(report["confirmed"])]
    assert bodies(cluster, "a")[: len(expected)] == expected
    assert bodies(cluster, "b") == bodies(cluster, "a")
    # It counts: without one of the others the two go on.
    cluster.kill("a")
    cluster.wait_master("bc", on="b")
    cluster.ask("b", "put", body="after")
    assert bodies(cluster, "b")[: len(expected)] == expected


def test_a_node_goes_on_alone_when_the_others_are_lost(cluster: Cluster, tmp_path: Path) -> None:
    """Two of three wiped: nothing goes on before force-boot, all after it. Others join with empty
    stores and get everything; one that comes back with its old store is a stranger to it."""
    cluster.found("abc")
    cluster.open("orders", "abc")
    cluster.ask("a", "put_many", bodies=[f"m{number}" for number in range(100)])
    cluster["a"].ask(
        "set_policy", name="one", pattern="^lost$", definition={"ha-mode": "exactly",
        "ha-params": 1},
    )  # fmt: skip
    cluster["b"].ask("queue", name="lost")
    # A majority knows of it: C may hear of it a moment later.
    until(lambda: "lost" in cluster["c"].ask("queues"))
    cluster.wait_in_sync(2, on="c")
    assert "is open in another process" in refused("node", "force-boot", tmp_path / "c", "--yes")
    cluster.kill("a", "b", "c")
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "b").rename(tmp_path / "old")

    asked = mirrorq("node", "force-boot", tmp_path / "c")
    assert asked.exit_code == 1
    assert "queue 'orders': 100 messages kept; this copy was in sync" in asked.stdout
    assert "queue 'lost': LOST, there is no copy of it here" in asked.stdout
    assert "forgotten for good: a, b" in asked.stdout
    beside = refused("node", "forget", "a", "--path", tmp_path / "c")
    assert "has the nodes a, b beside it" in beside
    assert "While 2 of the 3 run: mirrorq node forget a --connect" in beside
    assert f"mirrorq node force-boot {tmp_path / 'c'}, which forgets all others" in beside
    cluster.launch("c").wait_started()
    assert "is not ready" in cluster["c"].ask("waits_for", timeout=1.0)
    cluster.kill("c")

    done("node", "force-boot", tmp_path / "c", "--yes")
    assert "is the only one" in refused("node", "force-boot", tmp_path / "c", "--yes")
    done("store", "verify", tmp_path / "c")
    cluster.start("c")
    cluster.open("orders", "c", passive=True)
    cluster.wait_master("c", on="c")
    assert cluster["c"].ask("queues") == ["orders"]
    cluster.ask("c", "put", body="alone")
    expected = [f"m{number}" for number in range(100)] + ["alone"]
    assert bodies(cluster, "c") == expected

    cluster.start("a")
    cluster.open("orders", "a", passive=True)
    cluster.wait_in_sync(1, on="c")
    old = cluster.launch("b", path=str(tmp_path / "old"))
    old.wait_started()
    until(lambda: "does not belong to this cluster" in cluster.log_text("c"))
    cluster.ask("c", "put", body="with a stranger")
    assert [node["name"] for node in cluster["c"].ask("nodes")] == ["a", "c"]
    cluster.kill("b")
    cluster.start("b")
    cluster.open("orders", "b", passive=True)
    cluster.wait_in_sync(2, on="c")
    cluster.kill("c")
    cluster.wait_master("ab", on="a")
    assert bodies(cluster, "a") == [*expected, "with a stranger"]
    first = cluster.ask("a", "get")
    assert (first["body"], first["redelivered"]) == ("m0", True)
    cluster["a"].ask("ack", message=first["number"])


def test_a_copy_that_lacks_messages_goes_on_with_what_it_has(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Of two nodes the one in sync is lost; the other is told to forget it, offline. What it had
    not fetched is counted, and gone; the rest is served, marked as redelivered."""
    cluster.name_all("a")
    cluster.launch("a", peers=None).wait_started()
    cluster["a"].ask("wait_ready")
    cluster["a"].ask("set_policy", name="manual", pattern="", definition={"ha-sync-mode": "manual"})
    cluster.open("orders", "a")
    cluster.ask("a", "put_many", bodies=[f"old{number}" for number in range(10)])
    cluster.join("b", "a")
    until(lambda: cluster["b"].ask("transferred", name="orders")["has_state"])
    cluster.ask("a", "put_many", bodies=[f"new{number}" for number in range(5)])
    until(lambda: cluster["b"].ask("transferred", name="orders")["live"] == 15)
    # What was received is on the disk when the master has heard so.
    cluster["b"].stop_cleanly()
    cluster.kill("a")
    shutil.rmtree(tmp_path / "a")

    said = done("node", "forget", "a", "--path", tmp_path / "b", "--yes")
    assert "queue 'orders': 5 messages kept, 10 LOST that it had not fetched yet" in said
    assert "NOT in sync" in said
    cluster.launch("b", peers=None, listen=None).wait_started()
    cluster["b"].ask("wait_ready")
    assert cluster["b"].ask("listening") == cluster.endpoints["b"], "its store knows where"
    cluster.open("orders", "b", passive=True)
    cluster.wait_master("b", on="b")
    assert bodies(cluster, "b") == [f"new{number}" for number in range(5)]
    cluster.wait_warned("10 messages are known to be lost", on="b")
    first = cluster.ask("b", "get")
    assert (first["body"], first["redelivered"]) == ("new0", True)
    assert cluster.ask("b", "put", body="next") >= 1 << 40
