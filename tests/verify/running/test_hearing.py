"""What an engine says is heard line by line, however it arrives, and up to now by whoever asks."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from onceflow.verify.engines.lines import Message, Told
from onceflow.verify.running.hearing import Hearing

FIRST, LAST = Message(Told.STEP, step="WRITE", batch=1), Message(Told.STEP, step="COMMIT", batch=1)


def test_lines_are_heard_in_order_however_they_arrive() -> None:
    heard: list[Message] = []
    reading, writing = os.pipe()
    hearing = Hearing(reading, heard.append)
    line = FIRST.as_line().encode()
    with ThreadPoolExecutor(1) as pool:
        os.write(writing, b"from Java: \xff\n" + line[:9])
        hearing.up_to_now()
        assert heard == [], "half a line is none"
        os.write(writing, line[9:] + b"\r\n" + LAST.as_line().encode())
        hearing.up_to_now()
        assert heard == [FIRST]
        waiting = pool.submit(hearing.until_the_end)
        hearing.up_to_now()  # also while another thread waits for more
        os.close(writing)
        waiting.result(60)
    os.close(reading)
    assert heard == [FIRST, LAST], "the end is an end of line, too"


def test_what_was_said_before_a_death_that_left_orders_unread_is_heard() -> None:
    """On a socket such an end is an error."""
    heard: list[Message] = []
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(b"an order\n")
        theirs.sendall(f"{FIRST.as_line()}\n".encode())
        theirs.close()
        Hearing(ours.fileno(), heard.append).until_the_end()
    assert heard == [FIRST]


@pytest.mark.parametrize("line", ["", "7", "null", '["told"]', '{"step": "WRITE"}', '{"told": "ready"', "[" * 100_000])
def test_what_is_not_meant_as_a_message_is_none(line: str) -> None:
    assert Message.of_line(line) is None


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ('{"told": "committed", "batch": "4"}', 'batch is "4"'),
        ('{"told": "committed", "batch": null}', "batch is null"),
        ('{"told": "committed", "batch": true}', "batch is true"),
        ('{"told": "committed", "batch": 4, "records": 1.5}', "records is 1.5"),
        ('{"told": "step", "step": ["WRITE"]}', 'step is ["WRITE"]'),
        ('{"told": "committed", "batch": 4, "written": 0}', "written is 0"),
        ('{"told": "committed", "batch": 4, "offset": 9}', "there is no field 'offset'"),
        ('{"told": "done"}', "nothing is told as 'done'"),
        ('{"told": "malformed"}', "nothing is told as 'malformed'"),
        ('{"told": {}, "at": "now"}', 'told is {}; at is "now"'),
    ],
)
def test_what_is_meant_as_a_message_and_is_none_says_what_is_wrong(line: str, wrong: str) -> None:
    """It was dropped in silence, or ended the thread that listens."""
    message = Message.of_line(line)
    assert message is not None
    assert (message.told, message.error) == (Told.MALFORMED, f"{wrong}, in {line}")


def test_what_an_engine_says_is_heard_as_it_was_said() -> None:
    said = Message(Told.COMMITTED, batch=4, written=False, records=12, at=7.5)
    assert Message.of_line(said.as_line()) == said
    assert Message.of_line('{"told": "committed", "batch": 4, "at": 7}') == Message(Told.COMMITTED, batch=4, at=7)
