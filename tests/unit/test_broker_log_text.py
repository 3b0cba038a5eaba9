"""What is shown of a log: its end, and the complaints before it."""

from __future__ import annotations

from onceflow.broker.log_text import end_of_log

AT = "2026-01-02 03:04:05,678"
INFO = f"{AT} INFO [Part id=1] Shutting down (kafka.Part)"
ERROR = f"{AT} ERROR [Server id=1] Fatal error during startup (kafka.Server)"
CAUSE = "Caused by: java.lang.ClassNotFoundException: no.such.Reporter"
FRAME = "\tat java.base/java.lang.ClassLoader.loadClass(ClassLoader.java:525)"


def test_a_complaint_is_shown_with_its_cause_however_many_lines_come_behind_it() -> None:
    log = [INFO, ERROR, FRAME, CAUSE, FRAME, *[INFO] * 100]
    assert end_of_log("\n".join(log), 15) == [ERROR, CAUSE, *[INFO] * 15]


def test_a_complaint_among_the_last_lines_is_shown_once() -> None:
    assert end_of_log(f"{INFO}\n{INFO}\n{ERROR}\n{FRAME}\n{CAUSE}\n{INFO}", 3) == [ERROR, CAUSE, INFO]


def test_the_first_of_many_complaints_are_kept() -> None:
    log = [*(f"{ERROR} {number}" for number in range(50)), *[INFO] * 3]
    assert end_of_log("\n".join(log), 3) == [*(f"{ERROR} {number}" for number in range(3)), *[INFO] * 3]


def test_an_earlier_life_is_not_told() -> None:
    settings = ["\tnum.partitions = 1"] * 300
    assert end_of_log("\n".join([ERROR, CAUSE, INFO, *settings, INFO]), 1) == [INFO]
