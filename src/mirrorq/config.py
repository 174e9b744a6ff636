"""Every limit and time of a node, with unit, default and the reason for the default.

`Config` has the settings that services use. `Tuning`, the base class, has the others, and is no
public name: only tests and measurements set them.
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
"""Maximum of any setting: every format keeps numbers up to this limit exact."""


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
    """Stable ops kept in memory for joining members; a member further behind gets a state."""
    transfer_chunk_bytes: int = _int(1 * MIB, 4 * KIB)
    """One chunk of a transfer: small beside a round, large beside a message."""
    heartbeat_ms: int = _int(250, 1)
    """Each link carries a sign of life this often."""
    trust_refused: bool = _bool(default=True)
    """A node is known dead at once when its connections have ended, the port refuses new
    connections, and most of the nodes find the same. False: only when the node has restarted, or
    was silent until the lease is over. False is for networks where another device refuses in a
    node's name and ends connections (a firewall that resets, a proxy), everywhere at a time."""
    lease_ms: int = _int(300, 1)
    """A node hands messages out only under a lease not older than this."""
    election_ms: int = _int(1000, 1)
    """Silence of the catalog's leader after which a node stands for election."""
    election_spread_ms: int = _int(150, 1)
    """Random part of the election time, so that two nodes seldom stand at once."""
    mark_delay_ms: int = _int(10, 0)
    """Mirrors learn the stable lsn with the next op, or after this time without a next op. A queue
    with one message at a time wakes mirrors once less for each message."""
    star: bool = _bool(default=True)
    """Small groups of messages go from a queue's master straight to each mirror, and each mirror
    reports straight to the master: useful where one put waits for the next. If any of the queue's
    nodes has False, all ops go along the ring."""
    rail: bool = _bool(default=True)
    """A thread without Python puts what comes so on a mirror's disk and tells the master. Only with
    `star`."""
    producer_expiry_ms: int = _int(24 * 3600 * 1000, 1000)
    """An idle producer id is forgotten after this."""
    spool_expiry_ms: int = _int(90 * 24 * 3600 * 1000, 1000)
    """The same for a spool: a spool away for longer may duplicate puts without an outcome."""
    checkpoint_bytes: int = _int(8 * MIB, 4 * KIB)
    """Ops applied between two checkpoints of a queue; bounds the replay at start."""
    checkpoint_ops: int = _int(512, 1)
    """Ops applied between two checkpoints of a queue."""
    staged_timeout_ms: int = _int(24 * 3600 * 1000, 1)
    """Staged messages of a run are dropped when the run was neither committed nor sealed, and has
    staged nothing, for this time: more than the longest job needs from first to last row."""
    connections_max: int = _int(10_000, 8)
    """Connections of a node's endpoint; a client has two. At most three quarters of the file
    descriptors that the process may have, so that the store and the host have theirs."""
    sealed_timeout_ms: int = _int(60_000, 1)
    """A run sealed and undecided for this time asks the deciding queue, which gives the run up: a
    driver seals and commits within moments."""
    session_expiry_ms: int = _int(1000, 1)
    """A client silent for this long is considered gone; its held messages go back."""
    consumer_return_ms: int = _int(30_000, 0)
    """An auto-delete queue waits this long for the client of its last consumer, if the client
    vanished without a goodbye. A late client finds its queue, and the messages of the meantime."""
    client_window_bytes: int = _int(16 * MIB, 64 * KIB)
    """Unread bytes between a client and its entry node, each way. At the bound the client's
    requests wait in their handles' turn, and masters deliver no more to the client."""


@frozen
class Config(Tuning):
    """Limits and times of one node. All nodes of a cluster should have equal settings."""

    message_bytes_max: int = _int(16 * MIB, 1)
    """Largest message: body, headers, ids, names and key together. Twice this must fit the memory
    of every member."""
    frame_bytes_max: int = _int(32 * MIB, 4 * KIB)
    """Largest frame; a put_many up to this size is one op: all or none."""
    store_bytes_max: int = _int(64 * GIB, 1 * MIB)
    """Bytes in use in the store; its file grows by itself, up to 72 MiB larger."""
    unconfirmed_bytes_max: int = _int(32 * MIB, 4 * KIB)
    """Unconfirmed bodies of one handle. At the bound `put` blocks."""
    unconfirmed_count_max: int = _int(100_000, 1)
    """Unconfirmed messages of one handle."""
    prefetch: int = _int(4096, 1)
    """Messages that a consumer or a handle's get() may hold ahead of the caller."""
    consumer_timeout_ms: int = _int(30 * 60 * 1000, 1000, or_off=True)
    """A message held unacknowledged for this long goes back, counted, and the consumer is
    cancelled: the consumer hangs, or lost the message. 0 = no message goes back for this reason. A
    queue may have a time of its own (`consumer-timeout`), and a message (`Message.extend`)."""
    failure_ms: int = _int(1000, 1)
    """Silence after which a peer is taken for gone."""
    lag_ms_max: int = _int(1000, 1)
    """R9: a member that holds the ring up for longer moves to the tail as joining."""
    sync_bytes_per_s: int = _int(0, 0)
    """Bytes a second that a joining copy of a queue asks for, on average; 0 = at full speed, which
    delays no other work: a chunk a round on the donor's side, few of them on the way."""
    exit_flush_ms: int = _int(4000, 0)
    """A process that ends with open handles waits this long for outcomes, of no other process."""
    spool_bytes_max: int = _int(1 * GIB, 1 * MIB)
    """Bytes on the disk for one queue's line of a spool."""
    spool_age_ms_max: int = _int(0, 0)
    """A message that waits in a spool for longer is dropped, if never sent; 0 = none is."""
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
"""Names of the settings for users: settings of `Tuning` are not among them."""


def _with_hints(make: Callable[..., None]) -> Callable[..., None]:
    """Wrap the constructor: an unknown setting raises an error that suggests a known setting."""
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
