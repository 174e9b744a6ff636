"""`mirrorq_worker`."""
