"""The control plane: state on which all nodes agree, and the machines that decide. Pure.

`raft` keeps one replicated log. `catalog` applies the log (nodes, queues, views, policies).
`controller` runs at the catalog's leader and reacts to live and dead nodes. `bootstrap` makes one
cluster of named empty nodes, exactly once. `force_boot` lets one node go on without the rest.

May import: protocol, containers. Begin with `controller.controller`, which proposes views, and
`catalog.view_changes`, which judges the proposals.
"""
