from celery import Celery

import mirrorq.contrib.kombu  # noqa: F401  (registers mirrorq://)

app = Celery("celery_shop", broker="mirrorq://127.0.0.1:7400//", backend="rpc://")
app.conf.task_acks_late = True  # a task is acked when it is done: a killed worker's comes again
app.conf.task_reject_on_worker_lost = True  # also when only the child that ran it was killed


@app.task
def add(one, other):
    return one + other


if __name__ == "__main__":
    print(add.delay(2, 3).get(timeout=10))
