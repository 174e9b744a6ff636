"""Real processes on loopback: killed, stopped, restarted, cut off, out of disk."""
