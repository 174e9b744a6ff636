"""The client of a spool, in other processes than its own."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from tests.kit import DEADLINE_S

import mirrorq


def test_a_forked_child_closes_nothing_and_is_told(tmp_path: Path, endpoint: str) -> None:
    """The spool is the parent's: the child's calls are refused at once, and the parent goes on."""
    with (
        mirrorq.connect(endpoint, spool=tmp_path / "spool", insecure=True) as client,
        client.queue("orders") as orders,
    ):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for call in (lambda: orders.put(b"child"), orders.flush):
                    with pytest.raises(mirrorq.ShutDown, match="before this one was forked"):
                        call()
                orders.close()
                client.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        orders.put(b"parent").accepted(DEADLINE_S)
        assert orders.status().messages == 1


def test_nothing_of_a_spool_is_pickled(tmp_path: Path, endpoint: str) -> None:
    with mirrorq.connect(endpoint, spool=tmp_path / "spool", insecure=True) as client:
        orders = client.queue("orders")
        for thing in (client, orders, orders.put(b"tea")):
            with pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(thing)
