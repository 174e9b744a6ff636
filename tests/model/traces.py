"""What it takes to show each mutation: a plan of `explore_search`, a checker, and the steps.

Everything that is not named slow is prompt, so that most traces say only what matters. Found by
`python -m harness.explore_search NAME`, which also finds a new one when a change of the
protocol's messages has made one stale.
"""

from __future__ import annotations

from harness.explore_world import Action

HEAR_AB = ("hear", 0, 1)

EXPIRED = (
    ("slow", ("link", 2, 0)),
    ("publish", 0),
    ("expire", 0),
    ("publish", 0),
    ("publish", 0),
    *[("hear", 2, 0)] * 3,
)
"""The id ends with its first message unconfirmed, and the handle sends that again."""

STAR_AND_BACK = (
    *[("publish", 0), ("hear", 0, 2)] * 3,
    ("view", "promote", "b"),
    ("view", "turn", ""),
    ("view", "promote", "a"),
)
"""Three ops by the star, which c alone gets; then another master, who has none of them, and a again
with what that one had."""

TRACES: dict[str, tuple[str, str, tuple[Action, ...]]] = {
    "goodbye of an older attachment ends the present one": (
        "owned",
        "owned",
        (("own", 0), ("owner lost", 0), ("own", 0), ("goodbye", 0, 0), ("tick",)),
    ),
    "handle that attaches anew is counted twice": (
        "owned",
        "invariant",
        (("own", 0), ("owner lost", 0), ("own", 0)),
    ),
    "stranger purges a connection's queue": ("owned", "owned", (("meddle", 0),)),
    "consumer seated though its queue goes": (
        "owned",
        "owned",
        (("publish", 0), ("tick",), ("own", 0)),
    ),
    "queue deleted for what a former master saw": (
        "owned",
        "owned",
        (("tick",), ("view", "promote", "b"), ("delete", 0)),
    ),
    "rail marks before its sync": ("rail", "disk", (("publish", 0),)),
    "epoch begun while the rail has the queue": (
        "rail",
        "invariant",
        (("slow", ("catalog", 0, 0)), ("view", "demote", "c"), ("publish", 0)),
    ),
    "rail takes on while it is asked to stop": (
        "rail",
        "memory",
        (("break", 0, 1), ("publish", 0)),
    ),
    "what is marked at receipt comes as any message": (
        "in memory",
        "memory",
        (("slow", ("link", 1, 2)), ("publish", 0)),
    ),
    "rail's log cut before the files have it": (
        "rail",
        "disk",
        (
            ("slow", ("link", 0, 2)),
            ("view", "promote", "b"),
            ("crash", 0),
            ("start", 0),
            ("lose", 0, 2),
            ("view", "demote", "a"),
            *[("hear", 0, 2)] * 2,
            ("commit", 0),
            ("view", "promote", "a"),
            *[("hear", 0, 2)] * 3,
            *[("publish", 0)] * 2,
            *[("hear", 0, 2)] * 3,
        ),
    ),
    "mark straight to the master before the sync": ("star", "disk", ()),
    "stable by the first mark that came straight": ("star", "invariant", ()),
    "straight marks kept over a view change": (
        "star",
        "disk",
        (
            ("slow", ("link", 0, 1)),
            ("slow", ("link", 0, 2)),
            *STAR_AND_BACK,
            *[("hear", 0, 1)] * 4,
            *[("hear", 0, 2)] * 4,
            ("publish", 0),
            ("hear", 0, 1),
        ),
    ),
    "straight mark of another epoch": (
        "star",
        "disk",
        (
            ("slow", ("link", 0, 1)),
            ("slow", ("link", 0, 2)),
            ("slow", ("link", 2, 0)),
            *STAR_AND_BACK,
            *[("hear", 2, 0)] * 3,
            *[("hear", 0, 1)] * 4,
            *[("hear", 0, 2)] * 2,
            *[("hear", 2, 0)] * 3,
            ("hear", 0, 2),
            ("publish", 0),
            ("hear", 0, 1),
        ),
    ),
    "op of the star that is missing is not asked for": (
        "star",
        "disk",
        (
            ("slow", ("link", 0, 2)),
            ("slow", ("link", 1, 2)),
            ("publish", 0),
            ("break", 0, 2),
            ("lose", 0, 2),
            ("publish", 0),
            ("hear", 0, 2),
        ),
    ),
    "confirm before the own disk": (
        "views",
        "disk",
        (("slow", ("disk", 0, 0)), ("publish", 0), ("view", "demote", "b")),
    ),
    "watermark is received": ("views", "disk", ()),
    "own durable without the minimum": ("views", "disk", (("view", "promote", "b"),)),
    "watermark of another epoch": (
        "views",
        "disk",
        (("slow", ("catalog", 0, 0)), ("view", "promote", "b"), ("publish", 0)),
    ),
    "stale repair answer": (
        "views",
        "memory",
        (
            ("slow", ("link", 2, 1)),
            ("view", "promote", "c"),
            ("view", "turn", ""),
            ("view", "turn", ""),
            ("hear", 2, 1),
        ),
    ),
    "watermark before repair": (
        "breaks",
        "disk",
        (
            ("slow", ("catalog", 0, 0)),
            ("slow", ("catalog", 2, 0)),
            ("slow", ("link", 2, 0)),
            ("view", "demote", "b"),
            ("publish", 0),
            ("install", 2),
            ("install", 0),
            ("view", "promote", "c"),
            ("install", 2),
            ("install", 0),
            ("break", 0, 2),
            ("lose", 2, 0),
            ("hear", 2, 0),
        ),
    ),
    "apply on received": ("views", "applied", ()),
    "cut to the left's length": (
        "breaks",
        "disk",
        (
            ("slow", ("link", 2, 1)),
            ("view", "demote", "b"),
            ("publish", 0),
            ("slow", ("link", 0, 1)),
            ("view", "demote", "c"),
            HEAR_AB,
            ("break", 1, 2),
            ("lose", 2, 1),
            ("commit", 0),
        ),
    ),
    "unrepaired left answers": (
        "breaks",
        "disk",
        (
            ("slow", ("link", 1, 2)),
            ("publish", 0),
            ("slow", ("link", 2, 1)),
            ("view", "promote", "c"),
            ("break", 0, 1),
            ("hear", 1, 2),
            ("hear", 1, 2),
            ("hear", 2, 1),
            ("hear", 1, 2),
            ("hear", 2, 1),
        ),
    ),
    "gate ended by a timeout": (
        "joining",
        "disk",
        (
            ("slow", ("disk", 2, 0)),
            ("view", "demote", "b"),
            ("commit", 0),
            ("view", "demote", "b"),
            ("crash", 2),
            ("publish", 0),
            ("tick",),
            ("commit", 0),
        ),
    ),
    "gate of a dropped member ended at the proposal": (
        "four",
        "disk",
        (
            ("slow", ("link", 2, 3)),
            ("view", "demote", "c"),
            ("publish", 0),
            ("commit", 0),
            ("view", "promote", "b"),
            ("crash", 2),
            ("lose", 2, 3),
            ("tick",),
            ("tick",),
        ),
    ),
    "joiner reports before its disk": (
        "joining",
        "disk",
        (("slow", ("disk", 2, 0)), ("view", "append", ""), ("commit", 0)),
    ),
    "joiner reports before it is complete": (
        "joining",
        "disk",
        (
            ("slow", ("disk", 2, 0)),
            ("publish", 0),
            ("view", "append", ""),
            ("write", 2),
            ("commit", 0),
        ),
    ),
    "natural drain on received acks": (
        "transfer",
        "disk",
        (
            ("slow", ("disk", 2, 0)),
            ("publish", 0),
            ("view", "append", ""),
            ("write", 2),
            ("ack", 0, 0),
            ("commit", 0),
        ),
    ),
    "state taken from the received log": ("joining", "applied", (("view", "promote", "b"),)),
    "state merged, not replaced": (
        "failover",
        "applied",
        (
            ("publish", 0),
            ("end", 0),
            ("crash", 2),
            ("ack", 0, 0),
            ("view", "promote", "b"),
            ("start", 2),
            ("view", "promote", "a"),
        ),
    ),
    "late body makes an acked message live": (
        "transfer",
        "applied",
        (
            ("slow", ("link", 2, 1)),
            ("publish", 0),
            ("view", "append", ""),
            *[("hear", 2, 1)] * 5,
            ("ack", 0, 0),
            ("hear", 2, 1),
        ),
    ),
    "promotion of one not in sync": (
        "careless",
        "disk",
        (("crash", 0), ("wipe", 0), ("start", 0), ("view", "promote", "a")),
    ),
    "unclean promotion although when-synced": (
        "careless",
        "disk",
        (
            ("slow", ("link", 1, 2)),
            ("view", "demote", "c"),
            ("publish", 0),
            ("view", "lose", "c"),
        ),
    ),
    "wiped store taken for the old member": (
        "careless",
        "disk",
        (("crash", 0), ("wipe", 0), ("start", 0), ("view", "promote", "a")),
    ),
    "proposal without compare-and-set": (
        "breaks",
        "disk",
        (
            ("slow", ("disk", 1, 0)),
            ("view", "demote", "c"),
            ("publish", 0),
            ("view", "demote", "b"),
            ("commit", 0),
        ),
    ),
    "restarted master acts in its old epoch": (
        "crashes",
        "applied",
        (
            ("slow", ("disk", 0, 0)),
            ("view", "demote", "b"),
            ("publish", 0),
            ("crash", 1),
            ("crash", 0),
            ("start", 0),
            ("view", "promote", "c"),
        ),
    ),
    "delivery without lease": (
        "consume",
        "delivery",
        (
            ("slow", ("link", 2, 0)),
            ("slow", ("catalog", 0, 0)),
            ("publish", 0),
            ("view", "promote", "b"),
            ("view", "demote", "a"),
            ("hear", 2, 0),
        ),
    ),
    "promise not honoured": (
        "move",
        "delivery",
        (
            ("slow", ("link", 2, 0)),
            ("slow", ("catalog", 0, 0)),
            ("publish", 0),
            ("yield",),
            ("view", "move", "b"),
            ("view", "demote", "a"),
            ("hear", 2, 0),
        ),
    ),
    "delivery above the horizon": (
        "late",
        "delivery",
        (
            ("slow", ("link", 0, 1)),
            ("publish", 0),
            HEAR_AB,
            HEAR_AB,
            ("crash", 0),
            ("view", "promote", "b"),
        ),
    ),
    "promotion not counted": (
        "consume",
        "delivery",
        (("publish", 0), ("view", "promote", "b")),
    ),
    "dedupe against the applied table only": (
        "views",
        "duplicate",
        (
            ("slow", ("link", 2, 0)),
            ("publish", 0),
            ("publish", 0),
            ("publish", 0),
            ("view", "demote", "c"),
        ),
    ),
    "confirm of an op that is not stable": ("views", "confirm", (("publish", 0),)),
    "producer gap accepted": ("producers", "duplicate", (("miss", 0), ("publish", 0))),
    "unknown producer taken as new": ("producers", "duplicate", EXPIRED),
    "expired producer goes on": ("producers", "duplicate", EXPIRED),
    "ack by epoch and sequence only": (
        "late acks",
        "acked",
        (("publish", 0), ("unseen", 0, 0), ("end", 0), ("ack late", 0, 1)),
    ),
    "give-back without delivery number": (
        "late acks",
        "delivery",
        (("publish", 0), ("unseen", 0, 0), ("again", 0, 0)),
    ),
}
