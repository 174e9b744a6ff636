"""Durations as texts."""

from __future__ import annotations

import pytest

from mirrorq.protocol.durations import milliseconds_in
from mirrorq.protocol.policy import PolicyError, parse


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("30s", 30_000),
        ("1.5h", 5_400_000),
        ("250ms", 250),
        ("5 m", 300_000),
        ("2d", 172_800_000),
        ("30", None),
        ("5 weeks", None),
        ("-1s", None),
        ("s", None),
        ("1e3s", None),
        ("\u0665s", None),
    ],
)
def test_a_text_is_a_number_and_a_unit(text: str, wanted: float | None) -> None:
    """What is none is refused, a number without a unit too: a policy's are milliseconds."""
    assert milliseconds_in(text) == wanted


def test_a_policys_times_may_be_texts() -> None:
    """It keeps milliseconds, as RabbitMQ writes them."""
    policy = parse("p", "", {"message-ttl": "1.5s", "expires": "1h", "consumer-timeout": 5})
    assert policy.given() == {"message-ttl": 1500, "expires": 3_600_000, "consumer-timeout": 5}
    with pytest.raises(PolicyError, match="message-ttl is a whole number"):
        parse("p", "", {"message-ttl": "soon"})
    with pytest.raises(PolicyError, match="max-length is a whole number"):
        parse("p", "", {"max-length": "5s"})
