"""Keeps what is committed from being dropped while there is nothing to commit: a thread that renews it now and then.

What it survives::

    a pipeline runs and has no input; its group has no members, so the cluster drops its committed offsets, the progress among
    them, ``offsets.retention.minutes`` after the last commit, and forgets its transactional id (7 days, both of them)
    the next batch finds neither its identity nor its claim, and nobody can tell whether another driver was there meanwhile

So a quarter of that time is the most that passes between two commits (``longest_rest_s``). It is a thread and not a trigger of
the query, for a query may trigger once a month.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from onceflow.errors import Fenced, NotAuthorized, RequestFailed
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.coordinator import RETENTION

log = logging.getLogger(__name__)

LONGEST_RETENTION_S = 24 * 3600.0
"""More is not relied on: the broker may not be asked, and its setting may be lowered while the pipeline runs."""
LEAST_RETENTION_S = 60.0
"""A broker cannot be told to keep it for less."""
_FIRST_LOOK_S = 5.0  # the first batches have the machine for themselves
_UNANSWERED_S = 60.0  # between two looks, until a broker has said how long it keeps what is committed
_LOOKS = 2  # in the longest rest: a commit is renewed when it is found older than the time between two of them


class Renewal:
    """``renew`` is called with an age in seconds again and again, on a thread of its own: it renews what is older.

    ``retention_s`` says how long the cluster keeps what is committed; it is asked on that thread, again and again until it
    answers. Ends with ``stop``, or when the name was lost to another driver; a daemon, so it keeps no process alive.
    """

    def __init__(self, name: str, renew: Callable[[float], None], retention_s: Callable[[], float]) -> None:
        self._name = name
        self._renew = renew
        self._retention_s = retention_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onceflow-renewal", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """Lets no renewal begin any more; one that is under way is not waited for."""
        self._stopped.set()

    def _run(self) -> None:
        if self._stopped.wait(_FIRST_LOOK_S):
            return
        between_s = self._between_s()
        while not self._stopped.wait(between_s or _UNANSWERED_S):
            between_s = between_s or self._between_s()
            if not self._look(between_s or _UNANSWERED_S):
                return

    def _between_s(self) -> float | None:
        """How long to wait between two looks; None where nobody could say. It may be said at the next look."""
        try:
            return longest_rest_s(self._retention_s()) / _LOOKS
        except Exception as error:  # noqa: BLE001  as in a look: brokers that start just now may answer anything
            log.info("%s is not known yet: %s", RETENTION, error)
            return None

    def _look(self, older_than_s: float) -> bool:
        """Whether to look again. What goes wrong is the next batch's to report; until then the next look may mend it."""
        try:
            self._renew(older_than_s)
        except Fenced as error:
            log.warning("pipeline %s rests, and does not renew its progress any more: %s", self._name, error.message)
            return False
        except Exception as error:  # noqa: BLE001  whatever it was: a thread that died of it would renew nothing any more
            log.warning("pipeline %s rests, and its progress could not be renewed: %s", self._name, error)
        return True


def longest_rest_s(retention_s: float = LONGEST_RETENTION_S) -> float:
    """The most that may pass between two commits, where the cluster keeps them for so long; by default where it does not tell."""
    return min(retention_s, LONGEST_RETENTION_S) / 4


def retention_s(cluster: ClusterSettings, patience_s: float = 10.0) -> float:
    """How long the cluster keeps what is committed, as far as it tells.

    Raises BrokerUnreachable, AuthenticationFailed: it may tell later. Who took that for "not told" would never ask again::

        the brokers keep what is committed for an hour; they restart, and refuse a login that they do not know yet
        24 hours are assumed, a resting pipeline is renewed each six hours, and its progress is dropped
    """
    try:
        minutes = ClusterAdmin(cluster, patience_s=patience_s).broker_setting(RETENTION)
    except (NotAuthorized, RequestFailed) as error:
        log.info("the brokers do not tell %s: %s", RETENTION, error.message)
        minutes = None
    return LONGEST_RETENTION_S if minutes is None else int(minutes) * 60.0
