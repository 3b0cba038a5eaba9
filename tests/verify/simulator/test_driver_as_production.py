"""The simulator's driver is written again, for time passes inside of it: held against the production coordinator.

All that a simulated driver's machine heard is played to a ``TransactionCoordinator`` of production, whose cluster answers as the
simulated one did, and which is interrupted and killed at the same moments. Its machine has to hear the same, in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from onceflow.errors import BrokerUnreachable, OnceflowError, RequestFailed
from onceflow.transaction import coordinator as production
from onceflow.transaction.coordinator import RENEWALS, TransactionCoordinator, must_start
from onceflow.transaction.failures import AttemptFailed, IdentityRefused
from onceflow.transaction.messages import (
    Counts,
    Effect,
    Event,
    Halt,
    Offered,
    Ready,
    Refused,
    Renew,
    Start,
    Unreachable,
    WriteFailed,
    Written,
)
from onceflow.transaction.progress import Batch
from onceflow.transaction.protocol import Protocol, Settings
from onceflow.verify.simulator import run
from onceflow.verify.simulator.run import PRODUCTION

SEEDS = range(1200)
INTERRUPTED = "interrupted"
ASKED = (Start, Offered, Renew)


@dataclass
class Life:
    """A machine of production, and what it heard and asked for."""

    settings: Settings
    heard: list[tuple[Event, Effect]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = Protocol(self.settings)

    @property
    def context(self) -> Any:
        return self.machine.context

    def handle(self, event: Event) -> Effect:
        effect = self.machine.handle(event)
        self.heard.append((event, effect))
        return effect


class Killed(BaseException):
    pass


class AsBefore:
    """Answers a coordinator as the one of the ``former`` life was answered: each request of production's, and its writes."""

    name = "simulated"

    def __init__(self, former: Life, again: Life) -> None:
        self._former, self._again = former, again

    @property
    def next(self) -> Event:
        at = len(self._again.heard)
        if at == len(self._former.heard):
            raise Killed
        return self._former.heard[at][0]

    def __getattr__(self, request: str) -> Callable[..., Event]:
        return lambda *_: self._answer()

    def _answer(self) -> Event:
        match self.next:
            case WriteFailed(terminal=True, reason=reason):  # the same event follows from that error
                raise RequestFailed(reason)
            case Unreachable(reason):
                raise BrokerUnreachable(reason)
            case event:
                return event

    def on_step(self, *_: object) -> None:
        if self.next == Unreachable(INTERRUPTED):
            raise KeyboardInterrupt(INTERRUPTED)

    def write(self, *_: object) -> Counts:
        match self.next:
            case Written(counts):
                return counts
            case Refused(reason):
                raise IdentityRefused(reason)
            case WriteFailed(terminal=False, reason=reason):
                raise AttemptFailed(reason)
            case WriteFailed(terminal=True, reason=reason):
                raise ValueError(reason)
        raise AssertionError(f"no write of production's ends with {self.next}")


def lives_of(seed: int) -> list[Life]:
    lives: list[Life] = []

    def born(settings: Settings) -> Any:
        lives.append(Life(settings))
        return lives[-1]

    run(seed, replace(PRODUCTION, machine=born))
    return lives


def lived_again(former: Life) -> Life:
    again = Life(former.settings)
    cluster = AsBefore(former, again)
    requests: Any = cluster
    machine: Any = again
    coordinator = TransactionCoordinator(requests, machine, cluster.on_step)
    tried_again = renewed_again(former.heard)
    while len(again.heard) < len(former.heard):
        before = len(again.heard)
        assert before not in tried_again, "production does not renew a second time by itself"
        try:
            _asked(coordinator, cluster, former.heard[before:])
        except Killed:
            break
        except (OnceflowError, AttemptFailed, ValueError, KeyboardInterrupt):  # the query ends
            pass
        assert len(again.heard) > before
    return again


def _asked(coordinator: TransactionCoordinator, cluster: AsBefore, ahead: list[tuple[Event, Effect]]) -> None:
    match ahead[0][0]:
        case Offered(batch):
            coordinator.commit(batch, {}, cluster.write)
        case Renew() if not coordinator._protocol.context.claimed:  # it was fenced, and is asked whether it goes on
            coordinator._run(Renew(), {}, production._no_write)
        case Renew():
            coordinator.renew()
        case Start() if not must_start(coordinator.state):  # somebody starts a query anew in the same process
            coordinator.start()
        case Start() if offered := _offered_next(ahead):
            coordinator.commit(offered, {}, cluster.write)
        case Start():
            coordinator.ensure_started()
        case event:
            raise AssertionError(f"production has come to its end before it hears {event}")


def _offered_next(ahead: list[tuple[Event, Effect]]) -> Batch | None:
    """What is offered as soon as the machine has started, if it has: who commits has not to start by himself."""
    started = next((number for number, (_, effect) in enumerate(ahead) if isinstance(effect, Ready)), len(ahead))
    behind = [event for event, _ in ahead[started + 1 : started + 2]]
    is_of_this_start = not any(isinstance(event, ASKED) for event, _ in ahead[1 : started + 1])
    return behind[0].batch if is_of_this_start and behind and isinstance(behind[0], Offered) else None


def told(life: Life, count: int) -> list[tuple[Event, Effect]]:
    """Without reasons: of two errors in a row production tells both."""
    return [(_plain(event), _plain(effect)) for event, effect in life.heard[:count]]


def renewed_again(heard: list[tuple[Event, Effect]]) -> list[int]:
    """Where a renewal is tried again, for nothing came of the try before: whoever asked once has not asked anew."""
    again: list[int] = []
    tries, is_tried = 0, False
    for number, (event, effect) in enumerate(heard):
        if isinstance(event, ASKED):
            is_tried = isinstance(event, Renew)
            tries = tries if is_tried else 0
            if tries % RENEWALS:
                again.append(number)
        if isinstance(effect, Ready | Halt):
            tries = tries + 1 if is_tried and isinstance(effect, Ready) and not effect.committed else 0
            is_tried = False
    return again


def _plain(message: Any) -> Any:
    return replace(message, reason="") if hasattr(message, "reason") else message


def test_production_hears_and_asks_for_the_same() -> None:
    met: Counter[str] = Counter()
    for seed in SEEDS:
        for life in lives_of(seed):
            again = lived_again(life)
            assert told(again, len(life.heard)) == told(life, len(life.heard)), seed
            met.update(type(event).__name__ for event, _ in life.heard)
            met["interrupted"] += sum(event == Unreachable(INTERRUPTED) for event, _ in life.heard)
            met["killed"] += len(again.heard) > len(life.heard)
            met["renewed again"] += len(renewed_again(life.heard))
    assert all(met[each.__name__] for each in Event.__args__), met
    assert met["interrupted"] > len(SEEDS) / 10
    assert met["killed"] > len(SEEDS) / 10
    assert met["renewed again"], "rare, and the reason for so many seeds"


@pytest.mark.parametrize("name", ["must_start", "unanswered", "unwritten", "RENEWALS"])
def test_who_hears_something_else_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: production with another loop than the one that was simulated."""
    lives = (life for seed in SEEDS for life in lives_of(seed))
    others: dict[str, Any] = {
        "must_start": lambda state: True,
        "unanswered": lambda state, error: WriteFailed(terminal=True, reason=""),
        "unwritten": lambda error: WriteFailed(terminal=True, reason=""),
        "RENEWALS": 1,
    }
    monkeypatch.setattr(production, name, others[name])

    def differs(life: Life) -> bool:
        try:
            return told(lived_again(life), len(life.heard)) != told(life, len(life.heard))
        except AssertionError:
            return True

    assert any(differs(life) for life in lives)
