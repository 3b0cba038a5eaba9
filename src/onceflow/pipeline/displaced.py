"""Whether whoever fenced a driver has taken its pipeline over, or its transactional id alone.

A driver that takes over fences, and claims the name a moment later. Where nobody claims it, there is nobody to leave it to::

    a standby is not warm when it has to take over, and fences at once; the broker is frozen, and handles that after the
        standby's run has fenced once more: which finds itself fenced, by nobody else
    a coordinator moves, and with the old one goes the answer to an InitProducerId of this driver, which the new one refuses to
        repeat
    a driver was started by mistake, fenced, and died; or another program has the same transactional id

One that fences for another reason may claim later than anybody waits here: a restart that sets the checkpoint aside
(``--restart``) claims with its first batch, and a driver that starts from cold when Spark is there. Then the standby fences it in
turn, as if that driver had died.

What is told apart here is who goes on, never what is right: two that go on fence each other, and only one of them can commit.
"""

from __future__ import annotations

import time

from onceflow.config import Plan
from onceflow.errors import Displaced, Fenced, OnceflowError
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.requests import Requests

PATIENCE_S = 10.0
"""For a driver that has fenced, to claim the name, which takes who is about to take over a moment."""
_LOOK_S = 0.25


def told_apart(error: Fenced, plan: Plan, settings: ClusterSettings) -> Fenced | Displaced:
    """The error itself, or ``Displaced`` where nobody has claimed the name within ``PATIENCE_S``. Asks the cluster, and waits.

    Where the cluster does not answer, somebody may have: then it is ``Fenced``, too.
    """
    try:
        is_claimed = _is_claimed(error, plan, settings)
    except OnceflowError:
        return error
    if is_claimed:
        return error
    displaced = Displaced(
        f"{error.message}; nobody has claimed the name within {PATIENCE_S:.0f} s",
        action="start again; if it happens again, look for another program with this transactional id",
        **error.fields,
    )
    displaced.__cause__ = error
    return displaced


def _is_claimed(error: Fenced, plan: Plan, settings: ClusterSettings) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    with KafkaClient(settings.for_protocol(), within_s=2 * PATIENCE_S) as client:
        requests = Requests(client, plan.name, client.transaction_version(), plan.output.transaction_timeout.ms)
        while True:
            progress = requests.read_committed().progress
            if (progress.instance if progress else "") not in error.fields["claims"]:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_S)
