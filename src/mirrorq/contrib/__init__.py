"""mirrorq.contrib: integrations for frameworks.

Each integration is a user of mirrorq like any other, with public names only (and `waiting`, so that
no thread waits with a lock held; `opentelemetry` replaces methods of handles). No other part of
mirrorq imports an integration.

    kombu           the transport that Celery runs over: extra `mirrorq[celery]`
    django          a backend of Django's tasks, and its worker: `mirrorq[django]`
    dramatiq        a broker of dramatiq: `mirrorq[dramatiq]`
    taskiq          a broker and a result backend of taskiq: `mirrorq[taskiq]`
    opentelemetry   spans for puts and deliveries: `mirrorq[opentelemetry]`

`targets` keeps the handles with which kombu, dramatiq and django publish.
"""
