"""What librdkafka logs, passed on to Python's logging; a connection that is lost is heard there first, and often there alone.

librdkafka 2.16 calls ``error_cb`` for what it takes for an error. A connection that ends is none, until no broker is left::

    the application has one broker     it is disconnected: logged, and "1/1 brokers are down" is told to error_cb
    a cluster of three                 one connection is cut, and made again at once: logged, and nothing is told

It logs so with its defaults (``log_level``, ``log.connection.close``), which a writer's settings cannot change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

LOG = logging.getLogger("onceflow.writer.librdkafka")
LOG.addHandler(logging.NullHandler())
LOG.addFilter(lambda record: "enable.gapless.guarantee is experimental" not in record.getMessage())

_LOST = "FAIL"  # librdkafka's name of it: a connection that ended, or could not be made


class HeardLog:
    """What confluent-kafka takes for a logger. ``on_loss`` is called for each loss that is logged, by who polls the producer."""

    def __init__(self, on_loss: Callable[[], None]) -> None:
        self._on_loss = on_loss

    def log(self, level: int, message: str, facility: str, *others: object) -> None:
        """As ``logging.Logger.log``; ``facility`` is the first argument that librdkafka's binding fills in."""
        if facility == _LOST:
            self._on_loss()
        LOG.log(level, message, facility, *others)
