"""Keys: a worker's key needs to read and write its queues, and nothing else."""

from __future__ import annotations

from pathlib import Path

from mirrorq.errors import AuthenticationError
from pyspark_mirrorq.cluster import master_first, reading_order
from pyspark_mirrorq.options import parse


class Barred:
    """A client whose key is of the role client: it may not see the nodes."""

    def nodes(self) -> list[object]:
        raise AuthenticationError("key 'spark' may not see the nodes")

    def queues(self) -> list[object]:
        return []


class Queue:
    """A handle on a queue with two mirrors."""

    class Status:
        master = "a"
        synchronised_mirrors = ("b", "c")

    def status(self) -> Status:
        return self.Status()


def test_a_key_that_may_not_see_the_nodes_reads_at_the_given_endpoints(tmp_path: Path) -> None:
    """All endpoints that were named are used in turn; the order of holders is that of the user."""
    options = parse({"endpoints": "tcp://127.0.0.1:1,tcp://127.0.0.1:2", "queue": "x"})
    one, two = options.endpoints
    orders = reading_order(options, Barred(), Queue())  # type: ignore[arg-type]
    assert orders == [[one, two], [two, one]]
    assert master_first(options, Barred(), "x") == [one, two]  # type: ignore[arg-type]
