"""What a scrape shows: of one node, of a cluster over a failover, of a node that is busy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests import kit
from tests.kit import DEADLINE_S, peers_of, until

from mirrorq import ConfigError, Node, aio
from mirrorq.demo.ports import free_ports
from mirrorq.metrics import EXAMPLE, Collector, serve
from mirrorq.transport.endpoint import split_address

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """One series, 0 when there is none."""
    return registry.get_sample_value(f"mirrorq_{name}", labels) or 0.0


def test_a_scrape_tells_what_became_of_messages(node: Node) -> None:
    """Every count of one queue, and times of commits and rounds."""
    registry = CollectorRegistry()
    registry.register(Collector(node))
    orders = node.queue("orders")
    orders.put_many([b"1", b"2", b"3", b"4"]).result(DEADLINE_S)
    first, second, third = (orders.get(timeout=DEADLINE_S) for _ in range(3))
    first.ack().result(DEADLINE_S)
    second.nack(requeue=False).result(DEADLINE_S)
    third.nack().result(DEADLINE_S)
    assert orders.get(timeout=DEADLINE_S).redelivered
    found = {
        name: value(registry, f"messages_{name}_total", node="a", queue="orders")
        for name in ("published", "confirmed", "acked", "returned", "redelivered", "refused")
    }
    assert found == {
        "published": 4,
        "confirmed": 4,
        "acked": 1,
        "returned": 1,
        "redelivered": 1,
        "refused": 0,
    }
    assert value(registry, "messages_delivered_total", node="a", queue="orders") >= 4
    ended = {"node": "a", "queue": "orders", "reason": "rejected"}
    assert value(registry, "messages_ended_total", **ended) == 1
    total = value(registry, "queue_messages", node="a", queue="orders")
    parts = ("queue_messages_ready", "queue_messages_unacked", "queue_messages_delayed")
    assert total == sum(value(registry, part, node="a", queue="orders") for part in parts) == 2
    assert value(registry, "queue_replicas_in_sync", node="a", queue="orders") == 1
    assert value(registry, "copy_bytes", node="a", queue="orders") > 0
    assert value(registry, "store_used_bytes", node="a") > 0
    assert value(registry, "disk_free_bytes", node="a") > 0
    assert value(registry, "node_up", node="a") == 1
    for histogram in ("commit_seconds", "ring_round_seconds"):
        count = value(registry, f"{histogram}_count", node="a")
        assert count == value(registry, f"{histogram}_bucket", node="a", le="+Inf") > 0
        assert value(registry, f"{histogram}_sum", node="a") > 0
    orders.close()


def test_a_node_of_a_loop_is_scraped(node: Node) -> None:
    """The page of a web service gives the collector the node that it has."""
    registry = CollectorRegistry()
    registry.register(Collector(aio.Node(node)))
    assert value(registry, "node_incarnation", node="a") > 0


def test_names_of_queues_do_not_break_the_format(node: Node) -> None:
    """Whatever a queue is called, a scraper reads it back."""
    names = ['a"b', "{[line break]}", "back\\slash", "ümlaut {x}"]
    for name in names:
        node.queue(name).close()
    registry = CollectorRegistry()
    registry.register(Collector(node))
    text = generate_latest(registry).decode()
    seen = {
        sample.labels["queue"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "mirrorq_queue_messages"
    }
    assert seen == set(names)


def test_what_is_spooled(tmp_path: Path) -> None:
    """A node without a majority: its puts are accepted, and a scrape says how many wait."""
    with Node("a", path=tmp_path / "a", peers=peers_of("abc")) as alone:
        registry = CollectorRegistry()
        registry.register(Collector(alone))
        alone.queue("orders", spool=True).put_many([b"1", b"2"]).accepted(DEADLINE_S)
        named = {"node": "a", "queue": "orders"}
        assert value(registry, "spool_messages", **named) == 2
        assert value(registry, "spool_bytes", **named) > 0
        assert value(registry, "spool_connected", **named) == 0


def test_a_busy_node_thread_delays_no_scrape_for_good(node: Node) -> None:
    """The scrape shows the last sample and its age; the node thread waits for no scraper."""
    registry = CollectorRegistry()
    registry.register(Collector(node, patience_s=0.05))
    orders = node.queue("orders")
    orders.put(b"1").result(DEADLINE_S)
    until(lambda: value(registry, "messages_published_total", node="a", queue="orders") == 1)
    is_held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        go_on.wait(DEADLINE_S)

    node._driver.call(hold)
    assert is_held.wait(DEADLINE_S)
    try:
        until(lambda: value(registry, "sample_age_seconds", node="a") > 0.2)
        assert value(registry, "messages_published_total", node="a", queue="orders") == 1
    finally:
        go_on.set()
    orders.put(b"2").result(DEADLINE_S)
    until(lambda: value(registry, "messages_published_total", node="a", queue="orders") == 2)
    orders.close()


def test_many_queues_are_looked_at_in_slices(node: Node) -> None:
    """More queues than one round looks at, and all of them are there."""
    from mirrorq.node.sampling import SLICE

    for number in range(SLICE + 3):
        node.queue(f"q{number}").close()
    sample = node._sample(DEADLINE_S)
    assert sample is not None
    assert len(sample.copies) == sample.queues == SLICE + 3


def test_a_closed_node_is_down_and_can_be_scraped(tmp_path: Path) -> None:
    """What it was last is still there, and says its age."""
    node = Node("a", path=tmp_path / "a")
    registry = CollectorRegistry()
    registry.register(Collector(node))
    assert node._sample(DEADLINE_S) is not None
    node.close()
    assert value(registry, "node_up", node="a") == 0
    assert value(registry, "nodes", node="a") >= 0


def test_a_failover_shows_at_the_new_master(tmp_path: Path) -> None:
    """Counts come from the master's node; who takes over counts it."""
    registry = CollectorRegistry()
    with kit.nodes(tmp_path) as nodes:
        registry.register(Collector(*nodes.values()))
        orders = nodes["a"].queue("orders", timeout=DEADLINE_S)
        until(lambda: len(orders.status().synchronised_mirrors) == 2)
        orders.put_many([b"1", b"2"]).result(DEADLINE_S)

        def counted(name: str, among: str) -> float:
            return sum(value(registry, name, node=node, queue="orders") for node in among)

        until(lambda: counted("queue_messages", "abc") == 2)
        until(lambda: counted("copy_in_sync", "abc") == 3)
        until(lambda: all(value(registry, "peers_connected", node=name) == 2 for name in "abc"))
        # The master's node alone shows what a queue counts, and all nodes know of it.
        labels = [{"node": name, "queue": "orders"} for name in "abc"]

        def shown() -> int:
            found = [registry.get_sample_value("mirrorq_queue_messages", each) for each in labels]
            return len(found) - found.count(None)

        until(lambda: shown() == 1)
        until(lambda: all(n.queues()[0].messages_published == 2 for n in nodes.values()))
        before = counted("queue_failovers_total", "bc")
        nodes["a"].close()
        until(lambda: counted("queue_messages", "bc") == 2)
        until(lambda: counted("queue_failovers_total", "bc") > before)


def test_serving_over_http(node: Node) -> None:
    """`serve` listens on loopback, and its end frees the port."""
    port = free_ports(1)[0]
    end = serve(f":{port}", node)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
        text = answer.read().decode()
    assert 'mirrorq_node_up{node="a"} 1.0' in text
    assert "process_cpu_seconds_total" in text
    with pytest.raises(ConfigError, match=f"cannot serve metrics at 127.0.0.1:{port}"):
        serve(f"127.0.0.1:{port}", node)
    end()
    serve(f"127.0.0.1:{port}", node)()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:80", ("::1", 80)),
        ("host", None),
        ("host:", None),
        ("host:70000", None),
        ("", None),
    ],
)
def test_addresses(text: str, expected: tuple[str, int] | None) -> None:
    """Loopback unless somebody says otherwise."""
    if expected is None:
        with pytest.raises(ConfigError, match="give host:port"):
            split_address(text, EXAMPLE)
    else:
        assert split_address(text, EXAMPLE) == expected


def test_mirrorq_node_refuses_to_show_metrics_to_other_machines(tmp_path: Path) -> None:
    """Plain HTTP beyond loopback is asked for by name."""
    command = [sys.executable, "-m", "mirrorq", "node", "run", "a", "--path", str(tmp_path)]
    done = subprocess.run(
        [*command, "--metrics", "0.0.0.0:0"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "allow it with --insecure" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_mirrorq_node_serves_metrics_and_a_page(tmp_path: Path) -> None:
    """Both on loopback when only a port is given, and gone with the node."""
    metrics, page = free_ports(2)
    command = [sys.executable, "-m", "mirrorq", "node", "run", "a", "--path", str(tmp_path / "a")]
    options = ["--metrics", str(metrics), "--dashboard", str(page)]
    running = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "node a runs alone, without peers\n"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{metrics}/metrics", timeout=DEADLINE_S) as answer:
            assert 'mirrorq_node_up{node="a"} 1.0' in answer.read().decode()
        with opener.open(f"http://127.0.0.1:{page}/", timeout=DEADLINE_S) as answer:
            assert b"<title>mirrorq</title>" in answer.read()
        running.terminate()
        assert running.wait(DEADLINE_S) == 0
    finally:
        running.kill()
        running.communicate()


def test_the_dashboard_file_and_the_page_name_metrics_that_exist(node: Node) -> None:
    """docs/grafana/mirrorq.json asks for nothing that is not there; the page lists everything."""
    registry = CollectorRegistry()
    registry.register(Collector(node))
    node.queue("orders").close()
    text = generate_latest(registry).decode()
    existing = {
        sample.name for family in text_string_to_metric_families(text) for sample in family.samples
    }
    families = {
        family.name if family.type != "counter" else f"{family.name}_total"
        for family in text_string_to_metric_families(text)
    }
    dashboard = json.loads((ROOT / "docs" / "grafana" / "mirrorq.json").read_text("utf-8"))
    asked: set[str] = set()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            asked.update(re.findall(r"mirrorq_\w+", target["expr"]))
    for variable in dashboard["templating"]["list"]:
        asked.update(re.findall(r"mirrorq_\w+", str(variable.get("query", ""))))
    assert len(asked) > 15
    assert sorted(asked - existing) == []
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    named = set(re.findall(r"`(mirrorq_\w+)`", page))
    assert sorted(named ^ families) == []
