"""Sockets: the only package of mirrorq that imports zmq.

A node owns one `Transport`: one listening endpoint, and two connections to each peer, one
for control and one for data, so that a large frame delays no sign of life. A process that
is no node owns a `ClientSocket`, connected to one node at a time.

What it guarantees:

1. Between two nodes each channel is FIFO while its connection lasts. What was in flight
   when a connection ended may be lost; the loss shows as `Disconnected` and then `Connected`.
2. Nothing blocks but `poll`, and nothing grows without bound: what does not fit a queue is
   dropped, counted, and told (`SendLost`, `ReplyLost`). The protocols above resend.
3. Bytes from outside never raise: they come out as messages or as `Garbage`.
4. No exception of zmq leaves this package.

With keys (`Guard`) it authenticates who connects, and names the key with what a client sent;
what a key may do is decided above. It judges no failure: `Disconnected` says that a connection
ended, `ProbeResult` whether the peer's endpoint refuses connections, and silence is for the
machines above to notice.

How it works: a ROUTER is bound to the endpoint; each peer is reached by two DEALERs whose
routing ids name (node, incarnation, channel), so traffic from a to b uses connections that
a opened, and replies to clients go back over the ROUTER. Messages to one destination are
collected and leave as one zmq message a round (see `packing`). Beside a thread that computes in
Python whoever gives the GIL away may wait 5 ms for it, so only the sleep in `poll` does: what is
sent and received goes through `libzmq`, small parts at least.

May import: protocol, wire. Begin with `transport`.
"""
