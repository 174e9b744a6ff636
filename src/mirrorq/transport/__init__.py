"""Sockets: the only package of mirrorq which imports zmq.

A node owns one `Transport`: one listening endpoint, and two connections to each peer. Control and
data have separate connections, so a large frame delays no sign of life. A client process owns a
`ClientSocket`, connected to one node at a time.

Guarantees:

1. Between two nodes each channel is FIFO while its connection lasts. Messages in flight at the
   end of a connection may be lost; the loss shows as `Disconnected` and then `Connected`.
2. Only `poll` blocks, and nothing grows without bound. Messages beyond a full queue are dropped,
   counted, and reported (`SendLost`, `ReplyLost`). The protocols above resend.
3. Bytes from outside never raise: `poll` returns messages or `Garbage`.
4. No exception of zmq leaves the package.

With keys (`Guard`) the transport authenticates each connection, and names the key with a client's
messages; the rights of a key are decided above. The transport judges no failure. `Disconnected`
reports the end of a connection, `ProbeResult` a refusing endpoint. The machines above notice
silence.

How the transport works: a ROUTER is bound to the endpoint. Each peer is reached by two DEALERs with
routing ids of (node, incarnation, channel). So traffic from a to b uses connections opened by a,
and replies to clients go back over the ROUTER. Messages to one destination are collected and leave
as one zmq message a round (see `packing`). Beside a computing Python thread, a released GIL may
take 5 ms to come back. So only the sleep in `poll` releases the GIL: small parts at least are sent
and received through `libzmq`.

May import: protocol, wire. Begin with `transport`.
"""
