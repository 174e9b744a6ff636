"""mirrorq.contrib: ways in for frameworks.

Each is a user of mirrorq like any other: it uses public names only, and is imported by nobody who
does not want it.

    kombu   the transport that Celery runs over: extra `mirrorq[celery]`
"""
