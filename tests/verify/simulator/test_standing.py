"""Which driver the judge takes for the newest, and which it excuses where that one stops; beside each rule what is accused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from onceflow.kafka.client import GROUP as GROUP_KIND
from onceflow.transaction.messages import Coordinated, Identity
from onceflow.transaction.progress import Progress
from onceflow.verify.simulator.anomalies import Anomaly
from onceflow.verify.simulator.choices import Choices
from onceflow.verify.simulator.requests import (
    GROUP,
    NO_SOURCES,
    OK,
    AddPartitions,
    Answer,
    CommitOffsets,
    FetchOffsets,
    InitProducerId,
    Replaced,
    Sources,
    sources_at,
)
from onceflow.verify.simulator.scenario import Scenario
from onceflow.verify.simulator.transactions import EXHAUSTED
from onceflow.verify.simulator.world import Variant, World

if TYPE_CHECKING:
    from onceflow.verify.simulator.driver import Driver

EXCUSED: list[str] = []
ACCUSED = [str(Anomaly.NEWEST_STOPPED.shown())]
OLDER_CLAIM = Answer(misleads=True, tells_older_claim=True)


class Rivals:
    """Drivers by their numbers, of which nothing is modelled but what the brokers and the judge hear of them."""

    def __init__(self, version: int = 1, first_epoch: int = 0, *, follows_next: bool = False) -> None:
        self._world = World(
            Scenario(version, first_epoch=first_epoch, follows_next=follows_next), Choices(0, {}), Variant()
        )
        self.broker = self._world.broker
        self._standing = self.broker.standing

    def starts(self, driver: int) -> Identity:
        self._standing.asks(driver, blind=False)
        return self._initialised(InitProducerId(None, driver))

    def fences_blind(self, driver: int) -> None:
        """The transactional id has expired; it looks, asks for any identity, and uses it, which ends all doubt of who has it."""
        assert self.broker.transactions.forget()
        self._standing.asks(driver, blind=True)
        self.opens(self._initialised(InitProducerId(None, driver)))

    def refreshes(self, driver: int, expected: Identity) -> Identity:
        self._standing.asks(driver, blind=False)
        return self._initialised(InitProducerId(expected, driver))

    def _initialised(self, request: InitProducerId) -> Identity:
        identity = self.broker.ask(request).identity
        assert identity is not None
        return identity

    def claims(self, driver: int, identity: Identity, sources: Sources = NO_SOURCES) -> None:
        """And what it has committed with that."""
        group = self.broker.group
        assert group.commit(CommitOffsets(identity, Progress.empty(f"driver-{driver}"), sources)) == OK
        group.mark(identity, commit=True)

    def is_killed(self, driver: int) -> None:
        self._standing.has_ended(driver)

    def is_told_of_an_older_claim(self, driver: int) -> None:
        """Once; of the newest behind that."""
        self._standing.was_told(GROUP_KIND, driver, OLDER_CLAIM)
        self._standing.was_told(GROUP_KIND, driver, OK)

    def opens(self, identity: Identity) -> None:
        assert self.broker.ask(AddPartitions(identity, GROUP)) == OK

    def times_out(self) -> None:
        """The transaction that is open; until its markers are written."""
        transactions = self.broker.transactions
        assert transactions.metadata is not None
        transactions.expire(transactions.metadata.begun)
        while transactions.describe().state is not Coordinated.ABORTED:
            assert self._world._scheduler.step()

    def verdict(self, driver: int) -> list[str]:
        """Of one that stops now as if it were fenced."""
        self._world._check_fenced(cast("Driver", SimpleNamespace(order=driver)))
        return list(map(str, self._world.anomalies))


@pytest.fixture
def rivals() -> Rivals:
    """Driver 1 has claimed."""
    found = Rivals()
    found.claims(1, found.starts(1))
    return found


# ---------------------------------------------------------------------------- who fences since the id was not known


def test_it_is_older_than_one_that_has_claimed_since_and_has_ended(rivals: Rivals) -> None:
    rivals.claims(2, rivals.starts(2))
    rivals.is_killed(2)
    rivals.fences_blind(1)
    assert rivals.verdict(1) == EXCUSED


def test_and_stays_so_where_a_third_has_fenced_and_was_killed_before_it_claimed(rivals: Rivals) -> None:
    rivals.claims(2, rivals.starts(2))
    rivals.is_killed(2)
    rivals.starts(3)
    rivals.is_killed(3)
    rivals.fences_blind(1)
    assert rivals.verdict(1) == EXCUSED


def test_it_is_the_newest_where_whoever_fenced_last_has_ended_and_not_claimed(rivals: Rivals) -> None:
    rivals.starts(2)
    rivals.is_killed(2)
    rivals.fences_blind(1)
    assert rivals.verdict(1) == ACCUSED


def test_nor_does_a_claim_make_it_older_that_it_found_when_it_started() -> None:
    rivals = Rivals()
    rivals.claims(2, rivals.starts(2))
    rivals.starts(1)
    rivals.starts(2)  # again in its process
    rivals.is_killed(2)
    rivals.fences_blind(1)
    assert rivals.verdict(1) == ACCUSED


def test_nor_one_that_is_committed_no_more(rivals: Rivals) -> None:
    rivals.claims(2, rivals.starts(2))
    rivals.is_killed(2)
    assert rivals.broker.group.forget()
    rivals.fences_blind(1)
    assert rivals.verdict(1) == ACCUSED


def test_who_lives_stays_the_newest_and_is_excused(rivals: Rivals) -> None:
    rivals.starts(2)
    rivals.fences_blind(1)
    assert rivals.verdict(1) == rivals.verdict(2) == EXCUSED


# ------------------------------------------------------------------------------------- who was told of an older claim


def told_once(version: int = 1, *, follows_next: bool = False) -> tuple[Rivals, Identity]:
    """Driver 2 has claimed; driver 3 has the last epoch, and was told of an older claim, and of that one behind it."""
    rivals = Rivals(version, EXHAUSTED - 1, follows_next=follows_next)
    rivals.claims(2, rivals.starts(2))
    own = rivals.starts(3)
    assert own.epoch == EXHAUSTED
    rivals.is_told_of_an_older_claim(3)
    return rivals, own


def test_it_is_excused_by_what_it_was_told_last() -> None:
    rivals, _ = told_once()
    rivals.broker.standing.was_told(GROUP_KIND, 3, OLDER_CLAIM)
    assert rivals.verdict(3) == EXCUSED


def test_it_is_not_by_what_it_was_told_once() -> None:
    rivals, _ = told_once()
    assert rivals.verdict(3) == ACCUSED


@pytest.mark.parametrize("follows_next", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_unless_another_producer_id_follows_the_last_epoch(version: int, *, follows_next: bool) -> None:
    """Of version 2, Kafka 4.3 gives it by itself where it aborts; other brokers when they are asked."""
    rivals, own = told_once(version, follows_next=follows_next)
    rivals.opens(own)
    rivals.times_out()
    snapshot = rivals.broker.transactions.describe()
    assert snapshot.identity is not None
    given_by_itself = snapshot.identity.producer_id != own.producer_id
    assert given_by_itself == (version == 2 and follows_next)
    following = snapshot.identity if given_by_itself else rivals.refreshes(3, snapshot.identity)
    assert following.producer_id != own.producer_id
    assert rivals.verdict(3) == EXCUSED
    rivals.opens(following)
    assert rivals.verdict(3) == ACCUSED, "who uses it proves its place"


def test_what_it_was_told_before_it_claimed_excuses_nothing() -> None:
    rivals, own = told_once()
    rivals.claims(3, own)
    rivals.refreshes(3, own)
    assert rivals.verdict(3) == ACCUSED


def test_nor_what_it_was_told_before_it_started_again() -> None:
    rivals = Rivals(1, EXHAUSTED - 1)
    rivals.starts(3)
    rivals.is_told_of_an_older_claim(3)
    rivals.refreshes(3, rivals.starts(3))
    assert rivals.verdict(3) == ACCUSED


def test_nor_an_identity_that_another_one_was_given() -> None:
    rivals, own = told_once()
    rivals.refreshes(2, own)
    assert rivals.verdict(3) == ACCUSED


def test_nor_offsets_that_are_so_no_more_where_the_claim_is() -> None:
    rivals = Rivals()
    own = rivals.starts(3)
    rivals.claims(3, own)
    rivals.broker.replace_group(800)
    rivals.claims(3, own, sources_at(2))
    told = rivals.broker.ask_replaced(Replaced(GROUP_KIND, FetchOffsets(by_name=False, stable=False)))
    assert told is not None
    assert told.misleads
    rivals.broker.standing.was_told(GROUP_KIND, 3, told)
    assert rivals.verdict(3) == ACCUSED
