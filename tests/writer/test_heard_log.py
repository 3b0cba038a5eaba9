"""What librdkafka logs of requests that may have been done; the lines are those of its version 2.16."""

from __future__ import annotations

import logging

import pytest

from onceflow.writer.heard_log import HeardLog

FAILED = "[thrd:one:9092/1]: one:9092/1: ProduceRequest failed: "


@pytest.mark.parametrize(
    ("facility", "text", "is_doubtful"),
    [
        (
            "FAIL",
            "[thrd:one:9092/1]: one:9092/1: Disconnected: connection closed by peer (after 534ms in state UP)",
            True,
        ),
        ("FAIL", "[thrd:one:9092/1]: one:9092/1: 1 request(s) timed out: disconnect (_TIMED_OUT)", True),
        ("FAIL", "[thrd:one:9092/bootstrap]: one:9092/bootstrap: Decommissioning this broker (_DESTROY_BROKER)", False),
        ("REQERR", FAILED + "Local: Broker transport failure: explicit actions Refresh,MsgPossiblyPersisted", True),
        ("REQERR", FAILED + "Broker: Not leader for partition: actions Refresh,MsgNotPersisted", True),
        ("REQERR", FAILED + "Broker: Request timed out: actions Retry,MsgPossiblyPersisted", True),
        ("REQERR", FAILED + "Broker: Not enough in-sync replicas: explicit actions Retry,MsgNotPersisted", True),
        ("REQERR", FAILED + "Broker: Message size too large: actions Permanent,MsgNotPersisted", False),
        ("REQERR", FAILED + "Broker: Topic authorization failed: explicit actions Permanent,MsgNotPersisted", False),
        (
            "REQERR",
            "[thrd:main]: one:9092/1: MetadataRequest failed: Local: Broker transport failure: actions Refresh",
            False,
        ),
        ("STATE", "[thrd:one:9092/1]: one:9092/1: Broker changed state CONNECT -> APIVERSION_QUERY", False),
    ],
)
def test_what_may_have_been_done_is_heard(
    facility: str, text: str, caplog: pytest.LogCaptureFixture, *, is_doubtful: bool
) -> None:
    heard: list[str] = []
    caplog.set_level(logging.DEBUG)
    HeardLog(lambda: heard.append(facility), lambda: None).log(
        logging.DEBUG, "%s [%s] %s", facility, "producer-1", text
    )
    assert bool(heard) is is_doubtful
    assert not caplog.records, "it was not asked for by whoever looks at the log"


ENDED = "[thrd:TxnCoordinator]: TxnCoordinator: one:9092/1: "


@pytest.mark.parametrize(
    ("facility", "text", "is_doubtful"),
    [
        ("FAIL", ENDED + "Disconnected (after 534ms in state UP)", True),
        ("FAIL", ENDED + "1 request(s) timed out: disconnect (_TIMED_OUT)", True),
        (
            "FAIL",
            ENDED + "Connect to ipv4#127.0.0.1:9092 failed: Connection refused (after 0ms in state CONNECT)",
            False,
        ),
        ("FAIL", "[thrd:one:9092/1]: one:9092/1: Disconnected (after 534ms in state UP)", False),
        ("REQERR", ENDED + "EndTxnRequest failed: Broker: Not coordinator: actions Refresh,Retry", True),
        ("REQERR", ENDED + "EndTxnRequest failed: Broker: Producer fenced: actions Permanent", False),
        ("REQERR", ENDED + "AddOffsetsToTxnRequest failed: Broker: Not coordinator: actions Refresh", False),
    ],
)
def test_an_end_that_may_come_twice_is_heard(facility: str, text: str, *, is_doubtful: bool) -> None:
    heard: list[str] = []
    HeardLog(lambda: None, lambda: heard.append(facility)).log(
        logging.DEBUG, "%s [%s] %s", facility, "producer-1", text
    )
    assert bool(heard) is is_doubtful


def test_what_librdkafka_has_to_say_is_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    HeardLog(lambda: None, lambda: None).log(
        logging.ERROR, "%s [%s] %s", "FATAL", "producer-1", "[thrd:main]: it is broken"
    )
    assert [record.getMessage() for record in caplog.records] == ["FATAL [producer-1] [thrd:main]: it is broken"]
