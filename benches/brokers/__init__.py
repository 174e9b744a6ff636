"""Celery over mirrorq, Redis and RabbitMQ, in turn: `python -m brokers --help`."""
