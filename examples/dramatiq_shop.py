import dramatiq

from mirrorq.contrib.dramatiq import MirrorQBroker

dramatiq.set_broker(MirrorQBroker())  # connects to $MIRRORQ_URL when it is first used


@dramatiq.actor(max_retries=3)
def roast(beans):
    print(f"roasted {beans}", flush=True)


if __name__ == "__main__":
    roast.send("Yirgacheffe")  # returns when it is on disk on every mirror in sync
    roast.send_with_options(args=("Sidamo",), delay=100)
    print("sent")
