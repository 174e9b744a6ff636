from django.tasks import task


@task(takes_context=True)
def roast(context, beans):
    if context.attempt > 1:
        print(f"another worker may have begun to roast {beans}", flush=True)
    return f"roasted {beans}"
