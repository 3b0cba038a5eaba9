"""A call into librdkafka that is waited for no longer than a limit, whatever librdkafka does.

It runs on a thread of its own. One that is late is abandoned there, and keeps its client until it returns, or the process ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


def returned_within(timeout_s: float, call: Callable[[], object], name: str, late: Callable[[str], None]) -> bool:
    """Whether ``call`` has returned in time; raises what it raised. ``name`` is its thread's.

    ``late`` is told on that thread, in words, when one that was abandoned ends after all.
    """
    errors: list[BaseException] = []
    is_abandoned = False

    def to_its_end() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  raised again where the caller is
            errors.append(error)
        if is_abandoned:
            late(f"{name} has ended after all{f', with {errors[0]!r}' if errors else ''}")

    thread = threading.Thread(target=to_its_end, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # 3.12 starts none while the interpreter ends: then there is nobody whom waiting would hold up
        call()
        return True
    thread.join(timeout_s)
    if thread.is_alive():
        is_abandoned = True
        return False
    if errors:
        raise errors[0]
    return True
