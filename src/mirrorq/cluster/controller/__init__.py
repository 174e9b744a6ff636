"""Duties of the catalog's leader: replace masters, keep rings closed, let nodes join. Pure.

`controller.Controller` judges every queue. `failure_detector` tells live, certainly dead and silent
nodes apart. `leases` tells when a silent master may be replaced. `placement` lists the members by
policy. `transfers` and `handover` let a living master give a queue up. `join_throttle` and
`grace_periods` pace the replacement of lost copies.

May import: protocol, containers, the catalog. Begin with `controller`.
"""
