"""The entry node's side of `connect()`: the service of a node for clients.

A client's handle sends the same requests as a local handle. The gateway gives each session of a
client a `SessionId` of the entry node and a port among the driver's. So the engine and the master
need not know about clients. Requests go in under the session's id; events are sent to the client.

Everything runs on the node thread, and no message of a client raises: an invalid message is dropped
with a log line. Clients, their sessions and their calls are bounded in number. Publishes are
bounded by R10 and the client's window. Deliveries are bounded by the client's credit and another
window (`flow_control`): masters deliver no more to a client than it reads.

A client is gone after a goodbye, when its connection refuses a reply, or after a silence of
`session_expiry_ms`. Then each session ends with a Detach in its name, because the master may be on
another node. The session's deliveries are released and counted. The Detach tells if the client said
goodbye: an auto-delete queue waits for a client that did not.
"""
