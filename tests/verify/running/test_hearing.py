"""What an engine says is heard line by line, however it arrives, and up to now by whoever asks."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

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
