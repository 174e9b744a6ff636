"""Messages to bytes and back: microseconds for each kind that a round is full of.

Run: python benches/bench_messages.py
"""

from __future__ import annotations

import timeit

from mirrorq.protocol.control import Hello
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.ring import Data, Watermark
from mirrorq.protocol.sessions import (
    Confirmed,
    Credit,
    Deliver,
    Delivery,
    Publish,
    Reply,
    Request,
    SessionReply,
    SessionRequest,
    Settle,
)
from mirrorq.wire.frames import pack_publish
from mirrorq.wire.messages import WireMessage, decode, encode
from mirrorq.wire.ops import make_entry

COUNT = 20_000
SESSION = SessionId("node-a", 3, 17)
FRAME = pack_publish([b"x" * 100] * 10, producer=1, first_number=1)
HANDOUT = Delivery(4, 77, 1001, 1100, 1)


def _request(request: Request) -> SessionRequest:
    return SessionRequest(1, 4, SESSION, 2, 1000, request)


def _reply(reply: Reply) -> SessionReply:
    return SessionReply(1, 4, SESSION, 2, 1000, reply)


MESSAGES: dict[str, WireMessage] = {
    "Data, one entry": Data(1, 4, 1000, (make_entry(FRAME),)),
    "Watermark": Watermark(1, 4, 1000),
    "Publish": _request(Publish(FRAME, False)),
    "Credit": _request(Credit(1, 5000)),
    "Settle": _request(Settle(9, "ack", (HANDOUT,))),
    "Deliver, one frame": _reply(Deliver(1, (HANDOUT,), (FRAME,))),
    "Confirmed": _reply(Confirmed(5, ((1, 1000, 5001),))),
    "Hello": Hello("node-a", 2**62, 3, True),
}


def main() -> None:
    print(f"{'message':20} {'encode us':>10} {'decode us':>10} {'head bytes':>10}")
    for name, message in MESSAGES.items():
        parts = encode(message)
        microseconds = [
            min(timeit.repeat(call, number=COUNT, repeat=3)) / COUNT * 1e6
            for call in (lambda message=message: encode(message), lambda parts=parts: decode(parts))
        ]
        print(f"{name:20} {microseconds[0]:10.2f} {microseconds[1]:10.2f} {len(parts[0]):10}")


if __name__ == "__main__":
    main()
