"""The newest driver may stop only where it cannot know that it is the newest, and a move or an expiry excuses nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onceflow.transaction.messages import Effect, Event, Halt, Offered, Stop
from onceflow.transaction.protocol import Protocol, State
from onceflow.verify.simulator import Scenario, run
from onceflow.verify.simulator.anomalies import Anomaly
from onceflow.verify.simulator.choices import Taken
from onceflow.verify.simulator.run import Outcome
from onceflow.verify.simulator.world import Variant

NOT_KNOWN = "driver: the newest stops, for it cannot know that it is"
CAUSES: dict[str, tuple[Taken, str]] = {
    "the coordinator moves": ({("move", 0): 1}, "broker: the transaction coordinator moves"),
    "the transactional id expires": ({("expire", 0): 1}, "broker: the transactional id expires"),
    "the fence comes once more, late": ({("request", 1): 3}, "network: a request arrives when nobody waits for it"),
}
"""Faults before the first batch, which production survives, and the branch that shows that they came."""


class StopsForNothing(Protocol):
    """Takes itself for an older driver at its second batch."""

    def handle(self, event: Event) -> Effect:
        if self.context.state is State.READY and isinstance(event, Offered) and event.batch.id > 0:
            self.context = replace(self.context, state=State.STOPPED)
            return Halt(Stop.FENCED, "for nothing")
        return super().handle(event)


def suffering(taken: Taken, version: int, variant: Variant) -> Outcome:
    rates = dict.fromkeys(("move", "expire", "request"), 1.0)
    return run(0, variant, scenario=Scenario(version=version, rates=rates), taken=taken)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("cause", CAUSES)
def test_what_is_over_does_not_excuse_a_driver_that_stops_later(cause: str, version: int) -> None:
    taken, shows = CAUSES[cause]
    found = suffering(taken, version, Variant(StopsForNothing))
    assert shows in found.reached
    assert found.shows(Anomaly.NEWEST_STOPPED)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("cause", CAUSES)
def test_production_survives_it(cause: str, version: int) -> None:
    found = suffering(CAUSES[cause][0], version, Variant())
    assert not found.anomalies, found.story()
    assert "driver: an older one stops" not in found.reached


@pytest.mark.parametrize(("first_epoch", "follows_next"), [(0, False), (32764, False), (32764, True)])
def test_one_that_cannot_know_is_excused(first_epoch: int, *, follows_next: bool) -> None:
    """Its InitProducerId is answered to nobody, and the coordinator moves before it asks again: each moment of both is tried.

    At the end of the epochs the answer is another producer id, and a coordinator of Kafka 4.2 does not know the one before.
    """
    rates = {"request": 1.0, "move": 1.0}
    scenario = Scenario(version=1, first_epoch=first_epoch, follows_next=follows_next, rates=rates)
    faults = [{("request", number): 2, ("move", at): 1} for number in range(40) for at in range(20)]
    stopped = [
        found for found in (run(0, scenario=scenario, taken=taken) for taken in faults) if NOT_KNOWN in found.reached
    ]
    assert stopped
    assert not any(found.anomalies for found in stopped)
