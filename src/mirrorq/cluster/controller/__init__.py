"""What the catalog's leader does: replace masters, keep rings closed, let nodes join. Pure.

`controller.Controller` looks at every queue; `failure_detector` says who is alive, certainly dead
or silent, `leases` when a silent master may be replaced, `placement` which members a policy wants,
`transfers` and `handover` how a living master gives a queue up, `join_throttle` and
`grace_periods` how fast lost copies are made good.

May import: protocol, containers, the catalog. Begin with `controller`.
"""
