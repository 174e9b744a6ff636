"""The duties of a queue's master beside the ring: admit, deliver, settle, answer. Pure.

A `Master` lives for a *term*: from the view that made this member the master to the view with
another master or another incarnation of this member. All changes of the state go through ops
(`log_tail`). Every outcome that a user gets, good or bad, comes from a stable op (R3).
`Master.on_applied` decides a confirm, and `confirms` sends it.

Requests wait until the first op of the term, `promoted`, is applied: until then nothing is
delivered and no request is answered.
"""
