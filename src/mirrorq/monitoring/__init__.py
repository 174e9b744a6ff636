"""Values that operators read: status, alarms, health, who is connected. Pure.

Clients load them too and get them as JSON; a node makes them (`node.status`, `node.watch`).

May import: protocol, containers. Begin with `status`.
"""
