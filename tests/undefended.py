"""Drivers that take a commit without an answer for a failed attempt: controls of pipelines, ingests and outbox relays."""

from __future__ import annotations

from types import ModuleType

import pytest

from onceflow.transaction.asking import Asking
from onceflow.transaction.messages import Event, Identity
from onceflow.transaction.performing import Performer
from onceflow.transaction.questions import Questions
from onceflow.transaction.requests import Requests
from onceflow.transaction.talk import Pace
from onceflow.verify.simulator.variants import VARIANTS


class CommitsOnce(Requests):
    """Sends a commit once, whatever becomes of it, and aborts when the coordinator is done with that.

    Aborting sooner it would be defended after all, on version 1::

        the answer to EndTxn (commit) is lost; the abort, an InitProducerId, is there before the markers are written
        it is answered CONCURRENT_TRANSACTIONS, as one that has begun to abort is: the machine waits, looks and resolves
        the progress says that the batch is committed, and it is not written again
    """

    def end(self, identity: Identity, commit: bool) -> Event:
        if not commit:
            self.describe(settle=True)
            return super().end(identity, commit)
        asking = Asking(Questions(self.name, self.version, self.timeout_ms), Pace.real(0))
        return Performer(self.client, self.id).run(asking.end(identity, commit))


def abort_commits_without_an_answer(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    """Who commits by ``module`` from now on sends EndTxn once, and aborts and begins anew where its answer is lost."""
    monkeypatch.setattr(module, "Requests", CommitsOnce)
    monkeypatch.setattr(module, "Protocol", VARIANTS["abort after commit"].machine)
