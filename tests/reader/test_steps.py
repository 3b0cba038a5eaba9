"""No step is forgotten: at each that a reader reports it is killed and it is stopped, with each store and in both modes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from tests.reader import test_killed, test_lost_at_once, test_own_store, test_poison, test_servers, test_stopped
from tests.reader.support import Place, insert
from tests.reader.zombies import STEPS_WITHOUT_A_LOCK

from onceflow.reader.event import Event
from onceflow.reader.steps import Step

STEPS: Mapping[str, set[str]] = {
    "inbox": {step.value for step in Step if step is not Step.CLAIMED},
    "claims": {step.value for step in Step if step is not Step.ADMITTED},
}
SERVERS = ["postgresql", "redis"]
DURABLE = [*itertools.product(["sqlite", *SERVERS], STEPS)]
Case = Mapping[str, object]
Tests = Sequence[tuple[Callable[..., None], Case]]
"""Tests, each with what its cases must be given; ``step`` among it where a test has but one."""


@pytest.mark.parametrize("mode", STEPS)
def test_the_steps_are_those_of_a_whole_run(place: Place, mode: str) -> None:
    """With poison, or there is no letter. A step that this run does not come to needs one that does."""
    place.send(range(10))
    reported: set[str] = set()
    reader = place.reader(retries=0, on_step=lambda step: reported.add(step.value))

    def book(event: Event, tx: Any) -> None:
        if event.value == b"7":
            raise ValueError("bad")
        insert(tx, event)

    reader.handler(book if mode == "inbox" else lambda event: book(event, place.ledger))
    reader.run(until_end=True)
    assert reported == STEPS[mode]


@pytest.mark.parametrize(("store", "mode"), [*DURABLE, ("memory", "claims")])
def test_a_reader_is_killed_at_each_of_them(store: str, mode: str) -> None:
    at_once = {"kind": store, "mode": mode}  # in the first moments of a group
    tests = [
        (test_lost_at_once.test_killed_before_the_note_nothing_was_handled_and_the_group_begins, at_once),
        (test_lost_at_once.test_killed_behind_the_note_and_the_store_is_kept, at_once),
        *KILLS[store, mode],
    ]
    assert set(steps_of(tests if (store, mode) in DURABLE else KILLS[store, mode])) == STEPS[mode]


@pytest.mark.parametrize(("store", "mode"), [*DURABLE, ("memory", "claims")])
def test_a_reader_is_stopped_at_each_of_them(store: str, mode: str) -> None:
    all_at_once = test_own_store.STEPS if store == "memory" else STEPS_WITHOUT_A_LOCK[mode]
    assert {*all_at_once, *steps_of(STOPS[store, mode])} == STEPS[mode]


KILLS: dict[tuple[str, str], Tests] = {
    ("sqlite", "inbox"): [
        (test_killed.test_killed_at_every_step_the_inbox_repeats_and_loses_nothing, {}),
        (
            test_poison.test_killed_between_letter_and_commit_the_letter_comes_again_with_the_same_id,
            {"step": "buried"},
        ),
    ],
    ("sqlite", "claims"): [
        (test_killed.test_killed_outside_of_the_handler_claims_repeat_nothing, {}),
        (test_killed.test_killed_before_the_confirmation_one_effect_repeats_and_no_other, {"step": "handled"}),
        (
            test_servers.test_killed_before_a_letter_is_confirmed_it_comes_again_with_the_same_id,
            {"store": None, "step": "buried"},
        ),
    ],
    ("postgresql", "inbox"): [(test_servers.test_a_reader_killed_at_a_step, {})],
    ("redis", "inbox"): [(test_servers.test_redis_a_reader_killed_at_a_step, {})],
    **{
        (store, "claims"): [
            (test_servers.test_killed_outside_of_the_handler_claims_repeat_nothing, {"store": store}),
            (
                test_servers.test_killed_before_the_confirmation_one_effect_repeats_and_no_other,
                {"store": store, "step": "handled"},
            ),
            (
                test_servers.test_killed_before_a_letter_is_confirmed_it_comes_again_with_the_same_id,
                {"store": store, "step": "buried"},
            ),
        ]
        for store in SERVERS
    },
    ("memory", "claims"): [
        (test_killed.test_killed_with_a_store_in_memory_what_kafka_has_not_heard_of_repeats_and_no_other, {}),
        (
            test_killed.test_killed_with_a_store_in_memory_before_a_letter_is_confirmed_it_comes_again_with_the_same_id,
            {"step": "buried"},
        ),
    ],
}

# Where it holds a lock, and while it gives partitions back. The other steps are ``STEPS_WITHOUT_A_LOCK``, for each store; those
# of memory are in ``test_own_store``.
STOPS: dict[tuple[str, str], Tests] = {
    ("sqlite", "inbox"): [
        (test_stopped.test_stopped_inside_a_unit_of_sqlite_it_holds_the_others_up_and_nothing_repeats, {}),
        (
            test_stopped.test_stopped_while_a_partition_is_taken_from_it_nothing_repeats,
            {"mode": "inbox", "step": "revoked"},
        ),
    ],
    ("sqlite", "claims"): [
        (
            test_stopped.test_stopped_while_a_partition_is_taken_from_it_nothing_repeats,
            {"mode": "claims", "step": "revoked"},
        )
    ],
    ("postgresql", "inbox"): [
        (test_servers.test_a_reader_stopped_inside_its_transaction_and_woken_after_its_partition_moved, {}),
        (
            test_servers.test_stopped_or_killed_while_a_partition_is_taken_from_it_nothing_repeats,
            {"store": "postgresql", "mode": "inbox", "step": "revoked"},
        ),
    ],
    ("redis", "inbox"): [
        (test_servers.test_redis_a_reader_stopped_inside_its_transaction_and_woken_after_its_partition_moved, {}),
        (
            test_servers.test_stopped_or_killed_while_a_partition_is_taken_from_it_nothing_repeats,
            {"store": "redis", "mode": "inbox", "step": "revoked"},
        ),
    ],
    **{
        (store, "claims"): [
            (
                test_servers.test_stopped_or_killed_while_a_partition_is_taken_from_it_nothing_repeats,
                {"store": store, "mode": "claims", "step": "revoked"},
            )
        ]
        for store in SERVERS
    },
    ("memory", "claims"): [
        (test_own_store.test_stopped_while_a_partition_is_taken_from_it_nothing_repeats, {"step": "revoked"})
    ],
}


def steps_of(tests: Tests) -> Iterator[object]:
    """What their cases name. Each has some: one that nobody runs any more is no test of a step."""
    for test, given in tests:
        wanted = {name: value for name, value in given.items() if name != "step"}
        found = [{**given, **case}["step"] for case in cases_of(test) if case.items() >= wanted.items()]
        assert found, f"{test.__name__} has no case with {wanted}"
        yield from found


def cases_of(test: Callable[..., None]) -> Iterator[Case]:
    """The arguments of each of a test's cases, by name."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    for values in itertools.product(*(mark.args[1] for mark in marks)):
        case: dict[str, object] = {}
        for mark, value in zip(marks, values, strict=True):
            names = mark.args[0]
            case |= {names: value} if isinstance(names, str) else dict(zip(names, value, strict=True))
        yield case
