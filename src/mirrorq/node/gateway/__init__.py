"""The entry node's side of `connect()`: what a node does for processes that are no nodes.

A client's handle speaks the same requests as one on this node. Here each of its sessions gets
a `SessionId` of this node and a port among the driver's, so that the engine and the master
need not know that clients exist: requests go in under that id, events come out and are sent on.

Everything runs on the node thread, and nothing that a client sends raises: what is wrong is
dropped with a log line. Clients, their sessions and their calls are bounded in number; what they
publish is bounded by R10 and their window, what they are sent by their credit and another window
(`flow_control`): masters hand out no more to a client than it reads.

A client is gone when it says so, when its connection refuses a reply, or when it is silent for
`session_expiry_ms`. Then each of its sessions ends with a Detach in its name, because the master
may be on another node: what it held goes back, counted. It tells whether the client said so: a
queue that goes with its consumer waits for one that did not.
"""
