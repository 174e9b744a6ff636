"""Every limit and time of a node, with its unit, its default and the reason for it.

`Config` has the settings that services use. `Tuning`, its base, has the others, and is no public
name: only tests and measurements set them.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from typing import Any

from attrs import Attribute, field, fields_dict, frozen

from mirrorq.errors import ConfigError

__all__ = ["Config"]

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
MOST = 2**53
"""Of any setting: a number that every format keeps as it is."""


def _unit(name: str) -> str:
    if name.endswith("_ms") or "_ms_" in name:
        return " of milliseconds"
    return " of bytes" if "bytes" in name else ""


def _int(default: int, least: int, *, or_off: bool = False) -> int:
    def check(_: object, setting: Attribute[Any], value: object) -> None:
        is_off = or_off and value == 0
        if type(value) is not int or (value < least and not is_off):
            off = ", or 0 for none" if or_off else ""
            raise ConfigError(
                f"{setting.name} is {value!r}: it must be a whole number{_unit(setting.name)} from "
                f"{least} up{off}, {default} by default"
            )
        if value > MOST:
            raise ConfigError(f"{setting.name} is {value}: it must be at most {MOST}")

    return field(default=default, validator=check, kw_only=True)


def _bool(*, default: bool) -> bool:
    def check(_: object, setting: Attribute[Any], value: object) -> None:
        if type(value) is not bool:
            raise ConfigError(f"{setting.name} is {value!r}: it must be True or False")

    return field(default=default, validator=check, kw_only=True)


def _choice(default: str, *others: str) -> str:
    def check(_: object, setting: Attribute[Any], value: object) -> None:
        if value not in (default, *others):
            raise ConfigError(
                f"{setting.name} is {value!r}: it must be one of {', '.join((default, *others))}"
            )

    return field(default=default, validator=check, kw_only=True)


@frozen
class Tuning:
    """Settings for tests and measurements of mirrorq itself. Nothing here is promised: a name may
    change or go in any release. `Config` takes them by the same keywords."""

    unstable_bytes_max: int = _int(64 * MIB, 4 * KIB)
    """R10: ops of one queue not yet stable. At the bound `put` blocks."""
    joiner_bytes_max: int = _int(64 * MIB, 4 * KIB)
    """Stable ops kept in memory for joining members; who is further behind takes a state."""
    transfer_chunk_bytes: int = _int(1 * MIB, 4 * KIB)
    """One chunk of a transfer: small beside a round, large beside a message."""
    heartbeat_ms: int = _int(250, 1)
    """Each link carries a sign of life this often."""
    trust_refused: bool = _bool(default=True)
    """A node is known dead at once when its connections have ended, its port refuses new ones, and
    most of the nodes find the same. False: only when it has started anew, or was silent until its
    lease is over. For networks in which something else refuses in a node's name and ends its
    connections (a firewall that resets, a proxy), everywhere at a time."""
    lease_ms: int = _int(300, 1)
    """A node hands messages out only under a lease not older than this."""
    election_ms: int = _int(1000, 1)
    """Silence of the catalog's leader after which a node stands for election."""
    election_spread_ms: int = _int(150, 1)
    """Random part of the election time, so that two nodes seldom stand at once."""
    mark_delay_ms: int = _int(10, 0)
    """What is stable is told to mirrors with the next op, and on its own when none comes for this
    long: of a queue that gets one message at a time each message wakes them once less."""
    star: bool = _bool(default=True)
    """Small groups of messages go from a queue's master straight to each mirror, and each tells it
    straight what it has on disk: of use where one put waits for the next. Where one of the queue's
    nodes has it False all goes along the ring."""
    rail: bool = _bool(default=True)
    """A thread without Python puts what comes so on a mirror's disk and tells the master. Only with
    `star`."""
    producer_expiry_ms: int = _int(24 * 3600 * 1000, 1000)
    """An idle producer id is forgotten after this."""
    spool_expiry_ms: int = _int(90 * 24 * 3600 * 1000, 1000)
    """The same of a spool: who is away for longer may double what had no outcome when it went."""
    checkpoint_bytes: int = _int(8 * MIB, 4 * KIB)
    """Ops applied between two checkpoints of a queue; bounds the replay at start."""
    checkpoint_ops: int = _int(512, 1)
    """Ops applied between two checkpoints of a queue."""
    staged_timeout_ms: int = _int(24 * 3600 * 1000, 1)
    """What a run has staged is dropped when it was neither committed nor sealed, and has staged
    nothing, for this long: more than the longest job needs from its first row to its last."""
    connections_max: int = _int(10_000, 8)
    """Connections of a node's endpoint; a client has two. At most three quarters of the file
    descriptors that the process may have, so that the store and the host have theirs."""
    sealed_timeout_ms: int = _int(60_000, 1)
    """A run that is sealed and was not decided for this long asks the queue that decides, which
    gives it up: a driver seals and commits within moments."""
    session_expiry_ms: int = _int(1000, 1)
    """A client that is silent this long is gone; what it held goes back."""
    consumer_return_ms: int = _int(30_000, 0)
    """An auto-delete queue whose last consumer's client was taken for gone, and never said goodbye,
    waits so long for it: a client that only was late finds its queue, and what came into it."""
    client_window_bytes: int = _int(16 * MIB, 64 * KIB)
    """Bytes between a client and its entry node that have not come in, each way. At the bound the
    client's requests wait in their handles' turn, and masters hand out no more to it."""


@frozen
class Config(Tuning):
    """Limits and times of one node. All nodes of a cluster should have equal ones."""

    message_bytes_max: int = _int(16 * MIB, 1)
    """Largest message: body, headers, ids, names and key together. Twice this must fit the memory
    of every member."""
    frame_bytes_max: int = _int(32 * MIB, 4 * KIB)
    """Largest frame; up to it a put_many is one op: all or none."""
    store_bytes_max: int = _int(64 * GIB, 1 * MIB)
    """What may be in use in the store; its file grows by itself, up to 72 MiB larger."""
    unconfirmed_bytes_max: int = _int(32 * MIB, 4 * KIB)
    """Unconfirmed bodies of one handle. At the bound `put` blocks."""
    unconfirmed_count_max: int = _int(100_000, 1)
    """Unconfirmed messages of one handle."""
    prefetch: int = _int(4096, 1)
    """Messages that a consumer or a handle's get() may hold ahead of the caller."""
    consumer_timeout_ms: int = _int(30 * 60 * 1000, 1000, or_off=True)
    """A message that is held unacknowledged for this long goes back, counted, and the consumer
    that held it is cancelled: it hangs, or lost the message. 0 = nothing goes back for that. A
    queue may have a time of its own (`consumer-timeout`), and a message (`Message.extend`)."""
    failure_ms: int = _int(1000, 1)
    """Silence after which a peer is taken for gone."""
    lag_ms_max: int = _int(1000, 1)
    """R9: a member that holds the ring up for longer is moved to the tail as joining."""
    sync_bytes_per_s: int = _int(0, 0)
    """Bytes a second that a joining copy of a queue asks for, on average; 0 = as fast as they
    come, which delays nobody: a chunk a round on the donor's side, few of them on the way."""
    exit_flush_ms: int = _int(4000, 0)
    """A process that ends with handles open waits so long for outcomes: of this process alone."""
    spool_bytes_max: int = _int(1 * GIB, 1 * MIB)
    """What one queue's line of a spool may hold on the disk."""
    spool_age_ms_max: int = _int(0, 0)
    """What has waited in a spool for longer is dropped, if it was never sent; 0 = nothing is."""
    spool_overflow: str = _choice("block", "reject-publish", "drop-head")
    """What a put into a full spool does: wait, raise Full, or drop the oldest, if never sent."""

    def __attrs_post_init__(self) -> None:
        if self.heartbeat_ms >= self.failure_ms:
            raise ConfigError(
                f"heartbeat_ms {self.heartbeat_ms} must be below failure_ms {self.failure_ms}: "
                "else nodes that run are taken for gone between two signs of life"
            )
        if self.message_bytes_max + 4 * KIB > self.frame_bytes_max:
            raise ConfigError(
                f"message_bytes_max {self.message_bytes_max} does not fit frame_bytes_max "
                f"{self.frame_bytes_max}: make the frame at least 4096 bytes larger"
            )
        if self.lease_ms >= self.failure_ms:
            raise ConfigError(
                f"lease_ms {self.lease_ms} must be below failure_ms {self.failure_ms}: "
                "a node must lose its lease before it is replaced"
            )


PROMISED = tuple(name for name in fields_dict(Config) if name not in fields_dict(Tuning))
"""The settings that users have: those of `Tuning` are not among them."""


def _with_hints(make: Callable[..., None]) -> Callable[..., None]:
    """The constructor, which names the setting that was meant instead of one that there is not."""
    known = fields_dict(Config)

    @functools.wraps(make)
    def init(self: Config, **given: Any) -> None:
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"it takes {', '.join(PROMISED)}"
                if near:
                    unit = _unit(near[0]).replace(" of", ", in")
                    hint = f"did you mean {near[0]!r}{unit}, {known[near[0]].default} by default?"
                raise TypeError(f"Config has no setting {name!r}: {hint}")
        make(self, **given)

    return init


Config.__init__ = _with_hints(Config.__init__)  # type: ignore[method-assign]
