import time

import django

django.setup()

from tasks import roast  # noqa: E402

result = roast.enqueue("Yirgacheffe")  # returns when it is on disk on every mirror in sync
while not result.is_finished:
    time.sleep(0.1)
    result.refresh()
print(result.return_value)
