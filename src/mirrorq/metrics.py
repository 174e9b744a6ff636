"""A node's numbers for Prometheus. Needs the extra `metrics`; no other module imports this module.

    from prometheus_client import REGISTRY
    from mirrorq.metrics import Collector


    REGISTRY.register(Collector(node))

A queue's counts come from its master's node only, so that a sum over all nodes is right. Names are
RabbitMQ's where the thing is the same; docs/monitoring.md has all names.

*Threads*: a scrape runs on the scraper's thread. A scrape waits up to `patience_s` for a fresh
sample of the node thread, else takes the last sample, `mirrorq_sample_age_seconds` old.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from mirrorq.containers.histogram import BOUNDS_S, Observed
from mirrorq.errors import ConfigError
from mirrorq.monitoring.alarms import ADVICE
from mirrorq.node.sampling import NodeSample, QueueSample
from mirrorq.spool.route import SpoolStatus
from mirrorq.transport.endpoint import split_address, why_not

try:
    from prometheus_client import CollectorRegistry, Gauge, start_http_server
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector as BaseCollector
except ImportError as error:
    raise ImportError(
        "mirrorq.metrics needs prometheus-client: pip install 'mirrorq[metrics]'"
    ) from error

if TYPE_CHECKING:
    from mirrorq.aio.hosts import Node as AioNode
    from mirrorq.node.node import Node

__all__ = ["Collector", "serve"]

EXAMPLE = "127.0.0.1:9464"
"""Example of an address, for errors."""
PATIENCE_S = 1.0
"""A scrape waits this long for a node thread that is busy."""

_Row = TypeVar("_Row", NodeSample, QueueSample, SpoolStatus)
_OfNode = tuple[str, str, Callable[[NodeSample], float]]
_OfCopy = tuple[str, str, Callable[[QueueSample], float]]

NODE_GAUGES: tuple[_OfNode, ...] = (
    ("sample_age_seconds", "Age of what is shown of this node", lambda s: s.age_ms() / 1000),
    ("node_incarnation", "Grows at each start of the node", lambda s: s.incarnation),
    ("node_leader", "1: this node leads the catalog", lambda s: s.is_leader),
    ("node_paused", "1: no contact with a majority", lambda s: s.is_paused),
    ("node_blocked", "1: commits wait, the disk or the store is full", lambda s: s.is_blocked),
    ("nodes", "Nodes in the catalog", lambda s: s.nodes),
    ("nodes_alive", "Nodes that run, as this one sees it", lambda s: s.nodes_alive),
    ("queues", "Queues in the catalog", lambda s: s.queues),
    ("queues_down", "Queues that no running node is master of", lambda s: s.queues_down),
    ("connections", "Connections of the listening endpoint", lambda s: s.connections),
    ("peers_connected", "Peers to which this node is connected", lambda s: s.peers_connected),
    ("clients", "Clients served by this node", lambda s: s.clients),
    ("store_used_bytes", "Bytes in use in the store", lambda s: s.store_used_bytes),
    ("store_limit_bytes", "store_bytes_max", lambda s: s.store_bytes_max),
    (
        "store_used_ratio",
        "Part of store_bytes_max that is in use",
        lambda s: s.store_used_bytes / s.store_bytes_max,
    ),
)
NODE_COUNTERS: tuple[_OfNode, ...] = (
    ("sends_dropped", "Messages between processes that could not be sent", lambda s: s.dropped),
    ("garbage_received", "Messages that could not be read", lambda s: s.garbage),
)
MASTER_GAUGES: tuple[_OfCopy, ...] = (
    ("queue_messages_ready", "Messages that can be delivered", lambda c: c.ready),
    ("queue_messages_unacked", "Messages delivered and not acked", lambda c: c.unacked),
    ("queue_messages_delayed", "Messages whose delay has not ended", lambda c: c.delayed),
    (
        "queue_messages",
        "Ready, unacknowledged and delayed messages",
        lambda c: c.ready + c.unacked + c.delayed,
    ),
    ("queue_consumers", "Consumers", lambda c: c.consumers),
    ("queue_replicas", "Members of the view", lambda c: c.members),
    ("queue_replicas_in_sync", "Members of the view in sync", lambda c: c.members_in_sync),
    ("queue_unstable_bytes", "Ops not yet on all members in sync", lambda c: c.unstable_bytes),
    ("queue_blocked", "1: publishes or their confirms wait", lambda c: c.is_blocked),
)
COPY_GAUGES: tuple[_OfCopy, ...] = (
    ("copy_in_sync", "1: this node's copy is in sync", lambda c: c.in_sync),
    ("copy_bytes", "Bytes of this node's copy", lambda c: c.copy_bytes),
    ("copy_sync_ratio", "Part of the live messages that this copy has", lambda c: c.sync_share),
)
SPOOL_GAUGES: tuple[tuple[str, str, Callable[[SpoolStatus], float]], ...] = (
    ("spool_messages", "Accepted on this disk, not yet confirmed", lambda s: s.messages),
    ("spool_bytes", "Bytes in the spool, of spool_bytes_max", lambda s: s.bytes),
    (
        "spool_oldest_seconds",
        "How long the oldest spooled message has waited",
        lambda s: s.oldest_s,
    ),
    ("spool_connected", "1: spooled messages are being sent", lambda s: s.connected),
    ("spool_set_aside", "Messages that the queue refused, or damaged", lambda s: s.set_aside),
)
COUNTERS: tuple[_OfCopy, ...] = (
    ("messages_published", "Messages stored", lambda c: c.tally.published),
    ("messages_confirmed", "Messages confirmed", lambda c: c.tally.confirmed),
    ("messages_refused", "Messages refused", lambda c: c.tally.refused),
    ("messages_delivered", "Messages delivered", lambda c: c.tally.delivered),
    ("messages_redelivered", "Messages delivered again", lambda c: c.tally.redelivered),
    ("messages_acked", "Messages acked", lambda c: c.tally.acked),
    ("acks_refused", "Messages whose ack was refused", lambda c: c.tally.acks_refused),
    ("messages_returned", "Messages returned to the queue", lambda c: c.tally.returned),
    (
        "messages_dead_lettered",
        "Messages sent to their dead-letter queue",
        lambda c: c.tally.dead_lettered,
    ),
    ("queue_failovers", "Times that this node took over", lambda c: c.tally.failovers),
    (
        "queue_unclean_promotions",
        "Times that it took over without being in sync",
        lambda c: c.tally.unclean,
    ),
)


class Collector(BaseCollector):
    """Collects some nodes of this process, for any registry.

    Args:
        nodes: as a rule one, of `mirrorq` or of `mirrorq.aio`. Every series has the node's name as
            the label `node`.
        patience_s: how long a scrape waits for a node thread that is busy.
    """

    def __init__(self, *nodes: Node | AioNode, patience_s: float = PATIENCE_S) -> None:
        if not nodes:
            raise ConfigError("Collector() collects nothing: give it a node")
        self._nodes: tuple[Any, ...] = tuple(vars(node).get("host", node) for node in nodes)
        self._patience_s = patience_s

    def describe(self) -> Iterable[Metric]:
        """The names, without a look at any node."""
        return _families([], [])

    def collect(self) -> Iterator[Metric]:
        """Return all series with their current values."""
        samples = [node._sample(self._patience_s) for node in self._nodes]
        yield from _families([sample for sample in samples if sample is not None], self._nodes)


def serve(address: str, *nodes: Node) -> Callable[[], None]:
    """Serve the metrics of nodes, and of this process, over HTTP.

    Args:
        address: `host:port`; without a host, loopback.

    Returns:
        A function that ends the server.

    Raises:
        ConfigError: the server cannot listen at the address.
    """
    registry = CollectorRegistry()
    registry.register(Collector(*nodes))
    return _serve(address, registry)


def serve_values(
    address: str, queue: str, values: dict[str, tuple[str, Callable[[], int]]]
) -> Callable[[], None]:
    """Serve numbers of one queue's worker, and of this process, over HTTP, like `serve`.

    Args:
        values: help and value of each name.
    """
    registry = CollectorRegistry()
    for name, (text, value) in values.items():
        gauge = Gauge(name, text, ["queue"], registry=registry)
        gauge.labels(queue).set_function(value)
    return _serve(address, registry)


def _serve(address: str, registry: CollectorRegistry) -> Callable[[], None]:
    from prometheus_client import PlatformCollector, ProcessCollector

    host, port = split_address(address, EXAMPLE)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot serve metrics at {address}: {why_not(error)}") from error

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join(5)

    return end


def _families(samples: list[NodeSample], nodes: Iterable[Node]) -> Iterator[Metric]:
    up = GaugeMetricFamily("mirrorq_node_up", "1: the node runs", labels=["node"])
    for node in nodes:
        up.add_metric([node.name], not node.is_closed)
    yield up
    yield _info(nodes)
    yield _disk_free(nodes)
    yield _alarms(samples)
    rows = [((sample.node,), sample) for sample in samples]
    yield from _each(GaugeMetricFamily, NODE_GAUGES, ["node"], rows)
    yield from _each(CounterMetricFamily, NODE_COUNTERS, ["node"], rows)
    yield _histogram("commit_seconds", "Commits to disk", samples, lambda s: s.commits)
    yield _histogram(
        "ring_round_seconds",
        "From an op's leaving the master to stable",
        samples,
        lambda s: s.rings,
    )
    yield from _of_copies(samples)
    yield from _of_spools(nodes)


def _of_copies(samples: list[NodeSample]) -> Iterator[Metric]:
    labels = ["node", "queue"]
    rows = [((sample.node, copy.name), copy) for sample in samples for copy in sample.copies]
    masters = [row for row in rows if row[1].is_master]
    yield from _each(GaugeMetricFamily, MASTER_GAUGES, labels, masters)
    yield from _each(GaugeMetricFamily, COPY_GAUGES, labels, rows)
    yield from _each(CounterMetricFamily, COUNTERS, labels, rows)
    ended = CounterMetricFamily(
        "mirrorq_messages_ended",
        "Messages that ended without an ack",
        labels=[*labels, "reason"],
    )
    for named, copy in rows:
        for reason, count in copy.tally.ended.items():
            ended.add_metric([*named, reason], count)
    yield ended


def _of_spools(nodes: Iterable[Node]) -> Iterator[Metric]:
    """Yield metrics of the spools of nodes, without the node thread."""
    rows = [
        ((node.name, queue), status) for node in nodes for queue, status in node.spooled().items()
    ]
    yield from _each(GaugeMetricFamily, SPOOL_GAUGES, ["node", "queue"], rows)


def _each(
    family: type[GaugeMetricFamily] | type[CounterMetricFamily],
    table: Iterable[tuple[str, str, Callable[[_Row], float]]],
    labels: Sequence[str],
    rows: Sequence[tuple[tuple[str, ...], _Row]],
) -> Iterator[Metric]:
    """A family for each line of a table, with a series for each row: (label values, sample)."""
    for name, text, value in table:
        metric = family(f"mirrorq_{name}", text, labels=labels)
        for named, sample in rows:
            metric.add_metric(named, float(value(sample)))
        yield metric


def _histogram(
    name: str, text: str, samples: list[NodeSample], value: Callable[[NodeSample], Observed]
) -> Metric:
    family = HistogramMetricFamily(f"mirrorq_{name}", text, labels=["node"])
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    for sample in samples:
        observed = value(sample)
        buckets = zip(bounds, accumulate(observed.counts), strict=True)
        family.add_metric([sample.node], list(buckets), observed.seconds)
    return family


def _info(nodes: Iterable[Node]) -> Metric:
    family = GaugeMetricFamily("mirrorq_build_info", "Always 1", labels=["node", "version"])
    version = importlib.metadata.version("mirrorq")
    for node in nodes:
        family.add_metric([node.name, version], 1)
    return family


def _alarms(samples: list[NodeSample]) -> Metric:
    family = GaugeMetricFamily("mirrorq_alarm", "1: raised", labels=["node", "name"])
    for sample in samples:
        for name in ADVICE:
            family.add_metric([sample.node, name], name in sample.alarms)
    return family


def _disk_free(nodes: Iterable[Node]) -> Metric:
    """Asked of the system here: not by the node thread."""
    family = GaugeMetricFamily(
        "mirrorq_disk_free_bytes", "Free bytes of the store's disk", labels=["node"]
    )
    for node in nodes:
        try:
            found = os.statvfs(node.path)
        except OSError:
            continue
        family.add_metric([node.name], found.f_bavail * found.f_frsize)
    return family
