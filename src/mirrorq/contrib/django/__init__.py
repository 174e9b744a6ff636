"""A backend of Django's tasks, and the command that works on them, without a server.

    INSTALLED_APPS = [..., "mirrorq.contrib.django"]
    TASKS = {
        "default": {
            "BACKEND": "mirrorq.contrib.django.backend.MirrorQBackend",
            "OPTIONS": {"url": "mirrorq://host-a:7400,host-b:7400,host-c:7400"},
        }
    }

- `enqueue()` returns when the task is on disk on every mirror in sync.
- A task is acked after its run; a killed worker's task comes again, with `context.attempt`
  above 1.
- `run_after` and `priority` are the queue's own.
- Results are kept in one of Django's caches, when one is named.

Django 6 has tasks of its own; for Django 5.2 they are the package django-tasks.
`docs/frameworks.md` describes the guarantees after a kill.

    backend     the backend's methods; tasks and results as JSON
    worker      threads that run tasks; `management` has the command `mirrorq_worker`
"""
