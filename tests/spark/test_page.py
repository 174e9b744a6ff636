"""docs/spark.md: its code runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mirrorq.client.client import Client

from .conftest import until

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WAIT_S = 120.0


@pytest.mark.soak
def test_every_code_block_runs(spark: SparkSession, client: Client, tmp_path: Path) -> None:
    """In order, as one program, with the names that the page takes for known; and each does what
    the page says."""
    queues = {name: client.queue(name) for name in ("orders", "results", "express")}
    queues["orders"].put_many([b"%d" % number for number in range(30)]).result(WAIT_S)
    names: dict[str, Any] = {
        "spark": spark,
        "endpoints": ",".join(client.endpoints),
        "out": str(tmp_path / "out"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "df": spark.createDataFrame([(1, "espresso"), (2, "tea")], "id int, drink string"),
        "jobs": spark.createDataFrame(
            [("now", True), ("later", False)], "value string, urgent boolean"
        ),
    }
    text = PAGE.read_text(encoding="utf-8").replace("/data/", f"{tmp_path}/")
    text = re.sub(r"tcp://127[^\"]*:7402", names["endpoints"], text)
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count("```") // 2
    read, drain, stream, write, write_several = blocks
    exec(read, names)
    assert names["orders"].count() == 30
    exec(drain, names)
    assert names["drained"].acked == 30
    queues["orders"].put_many([b"a", b"b"]).result(WAIT_S)
    exec(stream, names)
    streamed = spark.read.parquet(names["out"]).collect()
    assert sorted(bytes(row.value) for row in streamed) == [b"a", b"b"]
    exec(write, names)
    assert {message.message_id for message in queues["results"].browse()} == {"1", "2"}
    exec(write_several, names)
    assert [message.body for message in queues["express"].browse()] == [b"now"]
    # The first queue by name decides; the other shows its part a moment later.
    until(lambda: b"later" in [message.body for message in queues["orders"].browse()])
    for queue in queues.values():
        queue.delete()
