"""A handle on a sharded queue: one queue to its users, one handle a shard behind it."""
