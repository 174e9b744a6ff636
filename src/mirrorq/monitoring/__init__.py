"""Values for operators: status, alarms, health, connected clients. Pure.

Clients load this package too and get JSON; a node makes the values (`node.status`, `node.watch`).

May import: protocol, containers. Begin with `status`.
"""
