"""The app of the benchmark: where its broker is comes by the environment."""

from __future__ import annotations

import json
import os

from celery import Celery

import mirrorq.contrib.kombu  # noqa: F401  (registers mirrorq://)

app = Celery("brokers", broker=os.environ["BENCH_BROKER"], backend="rpc://")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options=json.loads(os.environ.get("BENCH_OPTIONS", "{}")),
)


@app.task
def add(one: int, other: int) -> int:
    return one + other
