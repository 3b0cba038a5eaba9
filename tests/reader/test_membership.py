"""Who may read: a second process with the same instance id, and a reader that is no member of the group any more."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from tests.reader.conftest import Places
from tests.reader.support import TIMEOUT_S, Place

from onceflow.broker import EmbeddedBroker
from onceflow.errors import OnceflowError, ReaderReplaced
from onceflow.reader import loop
from onceflow.reader.event import Event
from onceflow.reader.membership import Membership
from onceflow.reader.steps import Step
from onceflow.reader.stores.interface import Retention
from onceflow.reader.stores.sqlite import SqliteStore


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_of_two_readers_with_one_instance_id_one_is_told_so(
    places: Places, broker: EmbeddedBroker, protocol: str
) -> None:
    """Kafka fences the older one (classic) or refuses the newer one (consumer); either way one goes on and one says why not."""
    place = places(on=broker)  # with the usual session: it is the other one who must lose it
    place.send(["1"])
    errors: list[OnceflowError] = []
    handled = [threading.Event(), threading.Event()]
    first, second = (place.reader(group_instance_id="one", group_protocol=protocol) for _ in handled)

    def run(reader: Any) -> None:
        try:
            reader.run()
        except OnceflowError as error:
            errors.append(error)

    for reader, seen in zip((first, second), handled, strict=True):
        reader.handler(lambda event, seen=seen: seen.set())
    threads = [threading.Thread(target=run, args=(reader,)) for reader in (first, second)]
    threads[0].start()
    assert handled[0].wait(TIMEOUT_S)
    threads[1].start()
    loser, winner = (0, 1) if protocol == "classic" else (1, 0)
    threads[loser].join(TIMEOUT_S)
    assert not threads[loser].is_alive()
    assert [type(error) for error in errors] == [ReaderReplaced], errors
    (first, second)[winner].stop()
    threads[winner].join(TIMEOUT_S)
    assert not threads[winner].is_alive()


@pytest.mark.parametrize("member", [False, True], ids=["no member", "control: believes to be one"])
def test_who_is_no_member_does_not_take_the_partition_back(
    place: Place, monkeypatch: pytest.MonkeyPatch, member: bool
) -> None:
    """Refused by the store it asks Kafka first; the owner after it is not fenced. A control that does not ask fences it."""
    place.send(range(20))
    rival = SqliteStore(place.file)
    rival.open(place.group, Retention())
    epochs: list[int] = []
    asked = threading.Event()

    def answer(*_: object) -> bool:
        asked.set()
        reader.stop()
        return member

    def step(step: Step) -> None:
        if step is Step.CLAIMED and not epochs:
            epochs.append(rival.take(place.topic, [0], "rival")[0].epoch)

    monkeypatch.setattr(loop.Loop, "_is_member", answer)
    reader = place.reader(on_step=step)
    seen: Counter[Any] = Counter()

    @reader.handler
    def book(event: Event) -> None:
        seen[event.value] += 1

    reader.run()
    rival.close()
    assert asked.is_set()
    row = place.ledger.execute("SELECT epoch, owner FROM onceflow_positions").fetchone()
    assert (row == (epochs[0], "rival")) is not member


def test_where_nothing_was_handled_yet_the_group_s_description_tells(place: Place) -> None:
    """No position, so no commit that could be refused: both answers are Kafka's own."""
    place.send(["1"])
    reader = place.reader(
        on_step=lambda step: answers.append(is_owner()) if step is Step.POLLED and not answers else None
    )
    answers: list[tuple[bool, bool]] = []

    def is_owner() -> tuple[bool, bool]:
        (member,) = place.admin.describe_consumer_groups([place.group])[place.group].result(TIMEOUT_S).members
        membership = Membership(reader._settings)
        return membership.owns(member.member_id, place.topic, 0), membership.owns("another", place.topic, 0)

    reader.handler(lambda event: None)
    reader.run(until_end=True)
    assert answers == [(True, False)]
