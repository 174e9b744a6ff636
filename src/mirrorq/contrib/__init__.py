"""mirrorq.contrib: ways in for frameworks.

Each is a user of mirrorq like any other: it uses public names only (and `waiting`, so that none of
its threads waits with a lock held; `opentelemetry` replaces methods of handles), and is imported by
nobody who does not want it.

    kombu           the transport that Celery runs over: extra `mirrorq[celery]`
    django          a backend of Django's tasks, and its worker: `mirrorq[django]`
    dramatiq        a broker of dramatiq: `mirrorq[dramatiq]`
    taskiq          a broker and a result backend of taskiq: `mirrorq[taskiq]`
    opentelemetry   spans for what goes through queues: `mirrorq[opentelemetry]`
"""
