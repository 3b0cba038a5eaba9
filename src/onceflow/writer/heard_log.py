"""What librdkafka logs, passed on to Python's logging; and, heard in it, that a request may be done whose answer is not known.

librdkafka 2.16 repeats such a request by itself, and reports what came of the last one alone. ``error_cb`` does not tell::

    one broker          it is disconnected: logged, and "1/1 brokers are down" is told to error_cb
    three of them       one connection is cut, and made again at once: logged, and nothing is told
    no answer in time   the connection is given up: at the level of debugging
    another answer      the leader has appended an event, and leads no more, or has too few replicas by now: the same

So ``debug=broker`` is switched on: it has each connection that ended (``FAIL``), and each answer behind which a request is sent
again (``REQERR``), before the report of what came of it, and little of what goes well. It is for this ear alone, not passed on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

LOG = logging.getLogger("onceflow.writer.librdkafka")
LOG.addHandler(logging.NullHandler())
LOG.addFilter(lambda record: "enable.gapless.guarantee is experimental" not in record.getMessage())

TELLING = {"debug": "broker"}
"""The option with which librdkafka logs it."""

_AGAIN = ("Retry", "Refresh")  # librdkafka's names of what it does behind an answer; a refusal for good is "Permanent"


class HeardLog:
    """What confluent-kafka takes for a logger. What it is given is called by who polls the producer.

    ``on_doubt``: a request may be done whose answer is not known. ``on_end_in_doubt``: EndTxn may have been sent twice.
    """

    def __init__(self, on_doubt: Callable[[], None], on_end_in_doubt: Callable[[], None]) -> None:
        self._on_doubt = on_doubt
        self._on_end_in_doubt = on_end_in_doubt

    def log(self, level: int, form: str, facility: str, client: str, text: str) -> None:
        """As ``logging.Logger.log``, with what librdkafka's binding gives it."""
        if (facility == "FAIL" and not _is_of_bootstrap(text)) or (
            facility == "REQERR" and _is_sent_again(text, "Produce")
        ):
            self._on_doubt()
        if (facility == "FAIL" and _is_of_coordinator(text)) or (
            facility == "REQERR" and _is_sent_again(text, "EndTxn")
        ):
            self._on_end_in_doubt()
        if level > logging.DEBUG:
            LOG.log(level, form, facility, client, text)


def _is_of_bootstrap(text: str) -> bool:
    """``[thrd:one:9092/bootstrap]: one:9092/bootstrap: Decommissioning this broker``: events go to brokers that have a number.

    It is given up as soon as those are known, which may be just behind a writer's first event.
    """
    return text.partition("]")[0].endswith("/bootstrap")


def _is_sent_again(text: str, request: str) -> bool:
    """``... ProduceRequest failed: Broker: Not leader for partition: actions Refresh,MsgNotPersisted``"""
    actions = text.rpartition("actions ")[2]
    return f"{request}Request failed" in text and any(name in actions for name in _AGAIN)


def _is_of_coordinator(text: str) -> bool:
    """``[thrd:TxnCoordinator]: TxnCoordinator: one:9092/1: Disconnected (after 23ms in state UP)``

    Nothing is sent on a connection before it is up.
    """
    return text.startswith("[thrd:TxnCoordinator]") and ("in state UP" in text or "in state" not in text)
