"""Waiting for a store that does not answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from onceflow.errors import OnceflowError
from onceflow.reader.settings import ReaderSettings

log = logging.getLogger("onceflow.reader")
T = TypeVar("T")


def patiently(action: Callable[[], T], settings: ReaderSettings) -> T:
    """Repeats an action that may be repeated while it fails in a way that may pass, for ``patience_s``; then raises."""
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
            time.sleep(pause_s)
