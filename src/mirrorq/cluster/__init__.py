"""The control plane: what all nodes agree on, and who decides it. Pure.

`raft` keeps one log, `catalog` applies it (nodes, queues, views, policies), `controller` is what
the catalog's leader does about the living and the dead. Beside them `bootstrap`, by which named
empty nodes become one cluster exactly once, and `force_boot`, by which one node goes on without
the others.

May import: protocol, containers. Begin with `controller.controller`, which proposes views, and
`catalog.view_changes`, which judges them.
"""
