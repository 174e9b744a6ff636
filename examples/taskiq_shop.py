import asyncio

from mirrorq.contrib.taskiq import MirrorQBroker, MirrorQResultBackend

broker = MirrorQBroker().with_result_backend(MirrorQResultBackend())  # at $MIRRORQ_URL


@broker.task(task_name="add")
async def add(one: int, other: int) -> int:
    return one + other


async def main():
    await broker.startup()
    task = await add.kiq(2, 3)  # returns when it is on disk on every mirror in sync
    result = await task.wait_result(timeout=60)
    print(result.return_value)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
