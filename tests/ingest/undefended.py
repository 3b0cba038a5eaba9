"""A committer that takes a commit without an answer for a failed attempt: a control, of ingests and of outbox relays."""

from __future__ import annotations

import pytest

from onceflow.ingest import committer
from onceflow.transaction.asking import Asking
from onceflow.transaction.messages import Event, Identity
from onceflow.transaction.performing import Performer
from onceflow.transaction.questions import Questions
from onceflow.transaction.requests import Requests
from onceflow.transaction.talk import Pace
from onceflow.verify.simulator.variants import VARIANTS


class CommitsOnce(Requests):
    """Sends a commit once, whatever becomes of it."""

    def end(self, identity: Identity, commit: bool) -> Event:
        if not commit:
            return super().end(identity, commit)
        asking = Asking(Questions(self.name, self.version, self.timeout_ms), Pace.real(0))
        return Performer(self.client, self.id).run(asking.end(identity, commit))


def abort_commits_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever commits from now on sends EndTxn once, and aborts and begins anew where its answer is lost."""
    monkeypatch.setattr(committer, "Requests", CommitsOnce)
    monkeypatch.setattr(committer, "Protocol", VARIANTS["abort after commit"].machine)
