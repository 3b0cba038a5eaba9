"""SIGKILL at every step of the loop: effects counted in the database equal the events, exactly. And what breaks without."""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path

import pytest
from tests.reader.light import Job
from tests.reader.support import Place

EVENTS = [str(number) for number in range(60)]
INBOX_STEPS = ["taken", "polled", "admitted", "handled", "committed", "offsets", "revoked"]
CLAIM_STEPS = ["taken", "polled", "claimed", "committed", "offsets", "revoked"]


def job(place: Place, step: str, before: int, **given: object) -> Job:
    """With an instance id the next process gets the partition at once; small batches, so that there are many steps."""
    options = {"batch_size": 10, "group_instance_id": "one", "retries": 0}
    return place.job(interrupt=(step, before, signal.SIGKILL), options=options, **given)


def kill_and_finish(place: Place, wanted: Job) -> None:
    assert place.start(wanted).wait() == -signal.SIGKILL
    place.finish(wanted)


@pytest.mark.parametrize("step", INBOX_STEPS)
def test_killed_at_every_step_the_inbox_repeats_and_loses_nothing(place: Place, step: str) -> None:
    place.send(EVENTS)
    kill_and_finish(place, job(place, step, 2 if step in ("admitted", "handled", "committed") else 0))
    assert place.effects() == EVENTS


def test_killed_before_kafka_heard_of_the_last_batch_the_next_reader_tells_it(place: Place) -> None:
    """It finds nothing to handle; without that word lag tools, and members that wait for the end, would wait for ever."""
    place.send(EVENTS)
    kill_and_finish(place, job(place, "committed", 5))
    assert place.effects() == EVENTS
    assert place.committed() == {0: len(EVENTS)}


def test_killed_again_in_the_recovery(place: Place) -> None:
    place.send(EVENTS)
    for step, before in (("handled", 1), ("taken", 0), ("committed", 0), ("admitted", 0)):
        assert place.start(job(place, step, before)).wait() == -signal.SIGKILL
    place.finish(job(place, "taken", 0))
    assert place.effects() == EVENTS


@pytest.mark.parametrize("step", CLAIM_STEPS)
def test_killed_outside_of_the_handler_claims_repeat_nothing(place: Place, tmp_path: Path, step: str) -> None:
    place.send(EVENTS)
    kill_and_finish(
        place, job(place, step, 3 if step in ("claimed", "committed") else 0, mode="claims", ledger=elsewhere(tmp_path))
    )
    assert effects_in(tmp_path) == EVENTS


def test_killed_before_the_confirmation_one_effect_repeats_and_no_other(place: Place, tmp_path: Path) -> None:
    """The stated limit of effects outside the store: the event in hand."""
    place.send(EVENTS)
    kill_and_finish(place, job(place, "handled", 24, mode="claims", ledger=elsewhere(tmp_path)))
    assert effects_in(tmp_path) == [*EVENTS[:25], "24", *EVENTS[25:]]


OF_A_FORGETFUL_STORE = [
    ("polled", 2),
    ("witnessed", 0),
    ("claimed", 3),
    ("handled", 24),
    ("committed", 24),
    ("offsets", 0),
    ("revoked", 0),
]


@pytest.mark.parametrize(("step", "before"), OF_A_FORGETFUL_STORE)
def test_killed_with_a_store_in_memory_what_kafka_has_not_heard_of_repeats_and_no_other(
    place: Place, tmp_path: Path, step: str, before: int
) -> None:
    """The stated limit of that store. What Kafka has heard of is known again by its id: the ten that were sent twice."""
    place.send([*EVENTS, *EVENTS[:10]])
    wanted = job(place, step, before, mode="claims", store="memory:", ledger=elsewhere(tmp_path))
    assert place.start(wanted).wait() == -signal.SIGKILL
    done, told = effects_in(tmp_path), place.committed().get(0, 0)
    assert done == EVENTS[: len(done)]
    assert told <= len(done) or done == EVENTS
    assert bool(told) is bool(done), "it is told behind the first batch"
    if step == "offsets":
        assert told == len(done), "Kafka's answer was waited for"
    place.finish(wanted)
    assert effects_in(tmp_path) == [*done, *EVENTS[told:]]


def test_control_effects_in_a_transaction_apart_from_the_ids_repeat(place: Place) -> None:
    """The same kill as above, handler and store in one file, but the effects are committed by themselves."""
    place.send(EVENTS)
    wanted = job(place, "committed", 2, mode="apart")
    killed = job(place, "handled", 24, mode="apart")
    assert place.start(killed).wait() == -signal.SIGKILL
    place.finish(wanted)
    assert len(place.effects()) > len(EVENTS)
    assert set(place.effects()) == set(EVENTS)


def test_control_offsets_committed_before_the_events_are_handled_lose_events(place: Place) -> None:
    """A plain consumer that commits first, killed after its second commit."""
    place.send(EVENTS)
    kill_and_finish(place, job(place, "offsets", 1, mode="ahead"))
    assert place.effects() == [*EVENTS[:10], *EVENTS[20:]]


def elsewhere(directory: Path) -> str:
    """A ledger that the store has no part in."""
    path = directory / "elsewhere.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE ledger (number INTEGER PRIMARY KEY, event TEXT, pid INTEGER)")
    connection.close()
    return str(path)


def effects_in(directory: Path) -> list[str]:
    connection = sqlite3.connect(directory / "elsewhere.db")
    try:
        return [row[0] for row in connection.execute("SELECT event FROM ledger ORDER BY number")]
    finally:
        connection.close()
