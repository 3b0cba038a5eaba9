"""SIGKILL at every step of the loop: effects counted in the database equal the events, exactly. And what breaks without."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.conftest import Reader as ReadAll
from tests.reader.effects import effects_in, elsewhere
from tests.reader.light import EFFECT, Job
from tests.reader.support import Place
from tests.reader.zombies import letters

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


FORMS = ["batch", "async", "run_async"]


@pytest.mark.parametrize(("step", "before"), [(EFFECT, 24), ("handled", 2), ("committed", 2)])
@pytest.mark.parametrize("form", FORMS)
def test_killed_with_a_handler_of_another_form_the_inbox_repeats_and_loses_nothing(
    place: Place, form: str, step: str, before: int
) -> None:
    place.send(EVENTS)
    kill_and_finish(place, job(place, step, before, form=form))
    assert place.effects() == EVENTS


# How many effects there are by then, and where the next reader begins: of a batch all that is not confirmed is the event in hand.
FORMS_OF_CLAIMS = [
    ("batch", EFFECT, 24, 25, 20),
    ("batch", "handled", 2, 30, 20),
    ("batch", "committed", 2, 30, 30),
    *((form, EFFECT, 24, 25, 24) for form in ("async", "run_async")),
    *((form, "committed", 24, 25, 25) for form in ("async", "run_async")),
]


@pytest.mark.parametrize(("form", "step", "before", "done", "begins_at"), FORMS_OF_CLAIMS)
def test_killed_with_a_handler_of_another_form_what_is_in_its_hands_repeats_and_no_other(
    place: Place, tmp_path: Path, form: str, step: str, before: int, done: int, begins_at: int
) -> None:
    """One event; or one batch, which is confirmed as a whole."""
    place.send(EVENTS)
    kill_and_finish(place, job(place, step, before, form=form, mode="claims", ledger=elsewhere(tmp_path)))
    assert effects_in(tmp_path) == [*EVENTS[:done], *EVENTS[begins_at:]]


OF_A_FORGETFUL_STORE = [
    ("taken", 0),
    ("polled", 2),
    ("begun", 0),
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


def test_killed_with_a_store_in_memory_before_a_letter_is_confirmed_it_comes_again_with_the_same_id(
    place: Place, tmp_path: Path, read: ReadAll
) -> None:
    place.send(EVENTS)
    wanted = job(place, "buried", 0, mode="claims", store="memory:", ledger=elsewhere(tmp_path), poison="15")
    assert place.start(wanted).wait() == -signal.SIGKILL
    told = place.committed()[0]
    assert (effects_in(tmp_path), told <= 15) == (EVENTS[:15], True)
    place.finish(wanted)
    assert effects_in(tmp_path) == [*EVENTS[:15], *EVENTS[told:15], *EVENTS[16:]]
    assert letters(place, read) == [b"15", b"15"]


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
