"""Waiting for a store or a broker that does not answer: as long as the patience lasts, and the reader is not to end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from onceflow.errors import OnceflowError
from onceflow.reader.settings import ReaderSettings
from onceflow.stop_flag import StopFlag

log = logging.getLogger("onceflow.reader")
T = TypeVar("T")


class Stopped(Exception):
    """The reader is to end before what it waits for has come."""


def patiently(action: Callable[[], T], settings: ReaderSettings, stop: StopFlag) -> T:
    """Repeats an action that may be repeated while it fails in a way that may pass, for ``patience_s``; then raises.

    Raises Stopped when ``stop`` is set and the action has just failed.
    """
    deadline = time.monotonic() + settings.patience_s
    attempts = 0
    while True:
        try:
            return action()
        except OnceflowError as error:
            if not error.retriable or time.monotonic() >= deadline:
                raise
            attempts += 1
            pause_s = settings.backoff.pause_s(attempts)
            log.warning("%s; again in %.1f s", error.message, pause_s)
            if stop.wait(pause_s):
                raise Stopped from error
