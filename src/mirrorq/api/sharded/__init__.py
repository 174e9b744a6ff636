"""A handle on a sharded queue: users see one queue; each shard has a handle of its own."""
