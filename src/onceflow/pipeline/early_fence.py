"""Ends what a lost driver left open while the next one only starts.

A driver that takes over fences when its Spark is up: at once if it is warm, and if it is not::

    the driver is killed in the middle of a batch; the standby took over a moment ago, and no other is warm yet
    the next one needs many seconds for its JVM
    until it fences, or transaction_timeout is over, read_committed readers stop at the open transaction

Fencing needs no Spark, so a cold driver that is told to run does that first. All that it asks for that has one deadline, however
many of the answers keep it waiting: the run is held up for no longer. A broker that is frozen for longer than that
may handle it last of all: then the run behind it finds itself fenced, by nobody who claims the name, and the next one takes
over (``displaced``). Only where the driver before has run under the same supervisor and is given up, or is known to be
dead (``last_driver``): otherwise a start fences as late as possible, for it may not get as far as running.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from onceflow.config import Plan
from onceflow.errors import OnceflowError
from onceflow.kafka.settings import ClusterSettings

if TYPE_CHECKING:
    from onceflow.transaction.requests import Requests

_PATIENCE_S = 15.0


class EarlyFence:
    """``begin`` may be called from any thread; ``wait`` before the run itself fences, which an early one must not follow."""

    def __init__(self, plan: Plan, settings: ClusterSettings) -> None:
        self._plan = plan
        self._settings = settings
        self._thread: threading.Thread | None = None

    def begin(self, is_due: Callable[[], bool] = lambda: True) -> None:
        """Waits for nothing, nor for what ``is_due`` answers. At least once has nothing open, and perhaps no right to fence."""
        if self._plan.guarantee != "at_least_once":
            thread = threading.Thread(target=self._fence, args=(is_due,), name="onceflow-early-fence", daemon=True)
            with contextlib.suppress(RuntimeError):  # there is no thread to be had
                thread.start()
                self._thread = thread

    def wait(self) -> None:
        """Until it is over, if it was begun."""
        if self._thread is not None:
            self._thread.join()

    def _fence(self, is_due: Callable[[], bool]) -> None:
        """A courtesy: the run that follows fences again, and tells what is wrong with the cluster."""
        if not is_due():
            return
        with contextlib.suppress(OnceflowError), fenced(self._plan, self._settings, within_s=_PATIENCE_S):
            pass


@contextlib.contextmanager
def fenced(plan: Plan, settings: ClusterSettings, **options: float) -> Iterator[Requests]:
    """Ends what any driver before has open, and gives the pipeline's requests; ``options`` are the client's."""
    from onceflow.kafka.client import KafkaClient
    from onceflow.transaction.requests import Requests

    with KafkaClient(settings.for_protocol(), **options) as client:
        requests = Requests(client, plan.name, client.transaction_version(), plan.output.transaction_timeout.ms)
        requests.initialise(expected=None)
        yield requests
