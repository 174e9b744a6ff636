"""Compact collections of numbers that know nothing of queues. Pure.

Sorted `ranges`, a number for each range (`range_map`), runs of equal values (`run_length`), what is
due when (`time_buckets`, `timers`), counts of durations (`histogram`).

May import: nothing of mirrorq. Begin with `ranges`.
"""
