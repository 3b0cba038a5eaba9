"""Under what is written outside of a transaction: one producer id, and an epoch of its own for each attempt (KIP-360).

What it spares::

    a pipeline writes a batch a second, each under a producer id of its own
    a leader remembers an id for a day (producer.id.expiration.ms): 86,400 of them for each partition that is written, and on
    each replica; and it tells all of them to whoever asks for the partition's producers, as the audit of another pipeline does

A broker asks nobody when a higher epoch comes: its first sequence must be 0, and what comes late under a lower one is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from onceflow.transaction.messages import Identity

LAST_IDEMPOTENT_EPOCH = 2**15 - 1  # outside of transactions nobody follows it with another producer id


class IdempotentIdentity:
    """The identity of a driver. ``ask`` is how the cluster gives one that nobody has."""

    def __init__(self, ask: Callable[[], Identity]) -> None:
        self._ask = ask
        self._last: Identity | None = None

    def next(self) -> Identity:
        """One under which nothing was written. Raises what ``ask`` raises."""
        last = self._last
        if last is None or last.epoch >= LAST_IDEMPOTENT_EPOCH:
            self._last = self._ask()
        else:
            self._last = Identity(last.producer_id, last.epoch + 1)
        return self._last

    def forget(self) -> None:
        """It was refused: the next one has another producer id."""
        self._last = None
