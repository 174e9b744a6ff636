"""Questions and answers by queues: `reply_to` says where, `correlation_id` which one it is.

Who answers looks at nothing but the question; where nobody waits any more (the queue for answers is
gone) it rejects it, which ends it. What cannot be understood is rejected as well.
python examples/request_reply.py ./data
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import mirrorq

WAIT_S = 60.0


def answer(question: mirrorq.Message) -> None:
    """Ack the question and put its answer where it says: both or neither."""
    if question.content_type != "application/json" or question.reply_to is None:
        question.nack(requeue=False)  # ends here, or in the dead-letter queue
        return
    numbers = json.loads(question.body)
    try:
        question.ack_and_put(
            question.reply_to,
            b"%d" % sum(numbers),
            correlation_id=question.correlation_id,
            ttl=timedelta(minutes=5),
        )
    except mirrorq.QueueNotFound:
        question.nack(requeue=False)


def main(path: str) -> None:
    """Ask three questions, print the answers as they come."""
    with (
        mirrorq.Node("a", path=path) as node,
        node.queue("sums") as questions,
        # Mine alone: others put into it, and it goes with this node, or this client.
        node.queue("answers-to-me", exclusive="connection") as answers,
    ):
        serving = questions.consume(answer)
        questions.put(b"what?", content_type="text/plain")
        asked = {"first": [1, 2], "second": [3, 4], "third": [5, 6]}
        for name, numbers in asked.items():
            questions.put(
                json.dumps(numbers).encode(),
                content_type="application/json",
                reply_to=answers.name,
                correlation_id=name,
                headers={"asked by": {"program": "request_reply", "user": None}},
            )
        for _ in asked:
            found = answers.get(timeout=WAIT_S)
            print(f"{found.correlation_id}: {found.body.decode()}")
            found.ack()
        serving.cancel()
        print("left:", questions.qsize())


if __name__ == "__main__":
    main(sys.argv[1])
