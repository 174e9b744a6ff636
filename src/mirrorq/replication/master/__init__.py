"""What the master of a queue does beside the ring: admit, hand out, settle, answer. Pure.

One `Master` lives for one *term*: from the view that made this member the master until one
that makes another member so, or changes it from one incarnation to the next. All state
changes go through ops (`log_tail`); every outcome that a user learns, yes or no, comes from
a stable one (R3). Where a confirm is decided: `confirms`, told by `Master.on_applied`.

Until the term's first op, `promoted`, is applied, requests wait: nothing is handed out, no ack
is answered, nothing is refused.
"""
