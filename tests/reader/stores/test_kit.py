"""The kit itself is proved: stores that are wrong in one way, and the checks that catch each of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.reader.stores.test_conformance import SqliteLines

from onceflow.errors import StoreError, StoreUnavailable
from onceflow.reader.stores import rules
from onceflow.reader.stores.interface import EventKey, Ownership, Retention, Standing, Store
from onceflow.reader.stores.memory import MemoryStore
from onceflow.reader.stores.sqlite import SqliteStore, SqliteTables, SqliteUnit
from onceflow.reader.stores.tables import EventId, Position, event_id, storable
from onceflow.testing import STORE_CHECKS, StoreSubject, check_store


class Mutant(SqliteStore):
    """A SQLite store whose tables are of the class ``tables``."""

    tables: type[SqliteTables] = SqliteTables

    def open(self, group: str, retention: Retention) -> None:
        super().open(group, retention)
        self._opened().connection.execute("PRAGMA synchronous = OFF")  # no power is lost here, and it is faster

    @contextmanager
    def unit(self) -> Iterator[SqliteUnit]:
        session = self._opened()
        with session.transaction(guarded=True):
            yield SqliteUnit(session, self.tables(session.connection, self._group))

    @contextmanager
    def _transaction(self) -> Iterator[SqliteTables]:
        session = self._opened()
        with session.transaction():
            yield self.tables(session.connection, self._group)


class NoFence(Mutant):
    """Believes every epoch."""

    class tables(SqliteTables):  # noqa: N801
        def position(self, topic: str, partition: int) -> Position | None:
            found = super().position(topic, partition)
            return found and Position(_AnyEpoch(found.epoch), found.next_offset)


class _AnyEpoch(int):
    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


class EpochStays(Mutant):
    """Takes a partition without a new epoch."""

    class tables(SqliteTables):  # noqa: N801
        def take(self, topic: str, partition: int, owner: str) -> Ownership:
            before = self.position(topic, partition)
            taken = super().take(topic, partition, owner)
            if before is None:
                return taken
            self._connection.execute("UPDATE onceflow_positions SET epoch = ?", (before.epoch,))
            return Ownership(topic, partition, before.epoch, taken.next_offset)


class IdsApart(Mutant):
    """Books ids and position in a transaction of their own, before the effects."""

    @contextmanager
    def unit(self) -> Iterator[Any]:
        outer = self

        class Unit(SqliteUnit):
            def admit(self, ownership: Ownership, keys: Sequence[EventKey]) -> list[Standing]:
                connection = self._session.connection
                connection.is_guarded = False
                standings = super().admit(ownership, keys)
                connection.execute("COMMIT -- apart")
                connection.execute("BEGIN IMMEDIATE -- apart")
                connection.is_guarded = True
                return standings

        session = outer._opened()
        with session.transaction(guarded=True):
            yield Unit(session, SqliteTables(session.connection, self._group))


class EffectsApart(Mutant):
    """Commits effects even if the unit fails."""

    @contextmanager
    def unit(self) -> Iterator[Any]:
        session = self._opened()
        with session.transaction(guarded=True):
            unit = SqliteUnit(session, SqliteTables(session.connection, self._group))
            session.connection.execute("SAVEPOINT mutant")
            try:
                yield unit
            except BaseException:
                session.connection.is_guarded = False
                session.connection.execute("COMMIT -- whatever")
                session.connection.execute("BEGIN IMMEDIATE -- whatever")
                raise


class SavepointKeepsAll(Mutant):
    """A savepoint that undoes nothing."""

    @contextmanager
    def unit(self) -> Iterator[Any]:
        class Unit(SqliteUnit):
            @contextmanager
            def savepoint(self) -> Iterator[None]:
                yield

        session = self._opened()
        with session.transaction(guarded=True):
            yield Unit(session, SqliteTables(session.connection, self._group))


class SavepointUndoesAll(Mutant):
    """A savepoint that undoes the effects before it as well."""

    @contextmanager
    def unit(self) -> Iterator[Any]:
        class Unit(SqliteUnit):
            @contextmanager
            def savepoint(self) -> Iterator[None]:
                try:
                    yield
                except BaseException:
                    self._session.connection.execute("DELETE FROM lines")
                    raise

        session = self._opened()
        with session.transaction(guarded=True):
            yield Unit(session, SqliteTables(session.connection, self._group))


class ForgetsPositions(Mutant):
    """Expiry takes the positions along."""

    class tables(SqliteTables):  # noqa: N801
        def forget_expired(self, retention: Retention) -> int:
            gone = super().forget_expired(retention)
            if gone:
                self._connection.execute("UPDATE onceflow_positions SET next_offset = NULL")
            return gone


class ForgetsClaims(Mutant):
    """Expiry takes the claims along."""

    class tables(SqliteTables):  # noqa: N801
        def forget_expired(self, retention: Retention) -> int:
            self._connection.execute("DELETE FROM onceflow_claims")
            return super().forget_expired(retention)


class ForgetsSequences(Mutant):
    """Expiry takes the compact form along."""

    class tables(SqliteTables):  # noqa: N801
        def forget_expired(self, retention: Retention) -> int:
            self._connection.execute("DELETE FROM onceflow_sequences")
            return super().forget_expired(retention)


class ForgetsAtOneBound(Mutant):
    """Expiry by time or by number, whichever comes first."""

    def forget_expired(self) -> int:
        seconds, count = self._retention.seconds, self._retention.count
        with self._transaction() as tables:
            gone = tables.forget_expired(Retention(seconds, None))
            return gone + tables.forget_expired(Retention(None, count))


class NeverForgets(Mutant):
    """No expiry."""

    def forget_expired(self) -> int:
        return 0


class LeaseForEver(Mutant):
    """A lease that does not run out."""

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        return super().claim(ownership, keys, max(lease_s, 3600.0))


class LeaseOfNobody(Mutant):
    """A claim that holds nobody up."""

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        return super().claim(ownership, keys, -lease_s)


class LeaseIsNeverRenewed(Mutant):
    """Claimed again, an event keeps the lease of its first claim."""

    class tables(SqliteTables):  # noqa: N801
        def put_claims(self, ownership: Ownership, keys: Mapping[EventId, EventKey], lease_s: float) -> set[EventId]:
            before = self._connection.execute("SELECT source, id, lease_until FROM onceflow_claims").fetchall()
            refused = super().put_claims(ownership, keys, lease_s)
            for source, name, lease_until in before:
                if (source, name) in keys and lease_until is not None:
                    self._connection.execute(
                        "UPDATE onceflow_claims SET lease_until = ? WHERE source = ? AND id = ?",
                        (lease_until, source, name),
                    )
            return refused


class BoundToItsThread(Mutant):
    """Works in the thread alone that has opened it."""

    def open(self, group: str, retention: Retention) -> None:
        super().open(group, retention)
        self._thread = threading.get_ident()

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        if threading.get_ident() != self._thread:
            raise StoreError("objects created in a thread can only be used in that same thread")
        return super().claim(ownership, keys, lease_s)


class ClaimsOutliveEpochs(Mutant):
    """Claims that are kept when the partition is taken."""

    class tables(SqliteTables):  # noqa: N801
        def take(self, topic: str, partition: int, owner: str) -> Ownership:
            self._connection.execute("UPDATE onceflow_claims SET topic = 'away-' || topic")
            taken = super().take(topic, partition, owner)
            self._connection.execute(
                "UPDATE onceflow_claims SET topic = substr(topic, 6), at_offset = at_offset + 1000"
            )
            return taken


class ConfirmPassesOpenClaims(Mutant):
    """Moves the position behind the last confirmed event, whatever is open before it."""

    class tables(SqliteTables):  # noqa: N801
        def lowest_open(self, ownership: Ownership) -> int | None:  # noqa: ARG002
            return None


class ForgetsEarlyConfirmations(Mutant):
    """Drops what was confirmed before its position passed it."""

    class tables(SqliteTables):  # noqa: N801
        def confirm_early(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
            pass


class ClaimingIsHandling(Mutant):
    """Books events as handled when they are claimed."""

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        standings = super().claim(ownership, keys, lease_s)
        super().confirm(ownership, keys)
        return standings


class IgnoresPosition(Mutant):
    """Decides by ids alone."""

    class tables(SqliteTables):  # noqa: N801
        def position(self, topic: str, partition: int) -> Position | None:
            found = super().position(topic, partition)
            return found and Position(found.epoch, None)


class IgnoresSource(Mutant):
    """Takes the id alone for the event's name."""

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        return super().claim(ownership, [key._replace(source="") for key in keys], lease_s)

    def confirm(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        super().confirm(ownership, [key._replace(source="") for key in keys])


class CutsNames(Mutant):
    """Ends a name at its first NUL, as C does."""

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        return super().claim(ownership, [key._replace(id=key.id.partition("\0")[0]) for key in keys], lease_s)


class CutsLongNames(Mutant):
    """Keeps the first thousand characters of a name."""

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        return super().claim(ownership, [key._replace(id=key.id[:1000]) for key in keys], lease_s)


class OneGroup(Mutant):
    """Mixes the groups."""

    def open(self, group: str, retention: Retention) -> None:
        super().open("all" if group.startswith("conformance") else group, retention)


class FirstGroupForEver(Mutant):
    """Keeps the group that it was opened for first."""

    first: str | None = None

    def open(self, group: str, retention: Retention) -> None:
        self.first = self.first or group
        super().open(self.first, retention)


class BooksOverGaps(Mutant):
    """Does not compare its position with what the owner knows."""

    class tables(SqliteTables):  # noqa: N801
        def position(self, topic: str, partition: int) -> Position | None:
            found = super().position(topic, partition)
            return found and Position(found.epoch, found.next_offset and _NeverBehind(found.next_offset))


class _NeverBehind(int):
    def __lt__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


class SequenceMayRepeat(Mutant):
    """Takes the highest sequence for new."""

    class tables(SqliteTables):  # noqa: N801
        def sequences(self, ownership: Ownership, sources: Collection[str]) -> dict[str, int]:
            return {source: number - 1 for source, number in super().sequences(ownership, sources).items()}


class SequencesOfAllPartitions(Mutant):
    """One highest sequence per source, for all partitions."""

    class tables(SqliteTables):  # noqa: N801
        def sequences(self, ownership: Ownership, sources: Collection[str]) -> dict[str, int]:  # noqa: ARG002
            rows = self._connection.execute("SELECT source, max(sequence) FROM onceflow_sequences GROUP BY source")
            return dict(rows.fetchall())


class BlindInOneCall(Mutant):
    """Does not see that one call holds the same id twice."""

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:  # noqa: ARG002
        return [super(BlindInOneCall, self).claim(ownership, [key], 0.0)[0] for key in keys]


class EmptiedIsNew(Mutant):
    """Takes whoever comes for the owner of a partition that it does not know."""

    class tables(SqliteTables):  # noqa: N801
        def position(self, topic: str, partition: int) -> Position | None:
            return super().position(topic, partition) or Position(_AnyEpoch(1), None)


class ZeroIsNothing(Mutant):
    """Takes a position at the topic's first event for none."""

    class tables(SqliteTables):  # noqa: N801
        def position(self, topic: str, partition: int) -> Position | None:
            found = super().position(topic, partition)
            return found and Position(found.epoch, found.next_offset or None)


class NotDurable(Mutant):
    """Begins anew when it is opened, and declares itself durable."""

    def open(self, group: str, retention: Retention) -> None:
        super().open(group, retention)
        connection = self._opened().connection
        for table in ("positions", "ids", "sequences", "claims"):
            connection.execute(f"DELETE FROM onceflow_{table} WHERE consumer_group = ?", (group,))
        connection.commit()  # or it would be caught for the lock that it keeps


class PretendsToHaveUnits(MemoryStore):
    """Gives a unit of a store that declares none."""

    @contextmanager
    def unit(self) -> Iterator[Any]:
        yield self


class CheckThenClaim(Mutant):
    """Looks in one transaction and claims in another: two readers find the same event free."""

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        with self._transaction() as tables:
            rules.fence(tables, ownership)
            known = tables.known([(key.source, key.id) for key in keys])
            held = self._claimed(tables)
        time.sleep(0.001)  # the window, held open
        with self._transaction() as tables:
            rules.claim(tables, ownership, keys, lease_s)
        return [Standing.HELD if (key.source, key.id) in known | held else Standing.NEW for key in keys]

    @staticmethod
    def _claimed(tables: SqliteTables) -> set[EventId]:
        return set(tables._connection.execute("SELECT source, id FROM onceflow_claims").fetchall())


class LooksThenClaims(Mutant):
    """Looks for ids in one transaction and claims in another: in between the event may be handled by somebody quicker."""

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        with self._transaction() as tables:
            known = tables.known([event_id(key) for key in keys])
        time.sleep(0.005 * ownership.partition)  # one of the two stands still

        class Tables(SqliteTables):
            def known(self, events: Collection[EventId]) -> set[EventId]:
                return known.intersection(events)

        session = self._opened()
        with session.transaction():
            return rules.claim(Tables(session.connection, self._group), ownership, storable(keys), lease_s)


class RefusesTheFirstUnit(Mutant):
    """Does not answer when it is asked for a unit."""

    def unit(self) -> Any:
        raise StoreUnavailable("not now")


def _of_all_topics(ownership: Ownership) -> Ownership:
    return replace(ownership, topic="-")


class TopicsAreOne(Mutant):
    """Keeps positions, sequences and claims by the partition's number alone."""

    class tables(SqliteTables):  # noqa: N801
        def position(self, topic: str, partition: int) -> Position | None:  # noqa: ARG002
            return super().position("-", partition)

        def take(self, topic: str, partition: int, owner: str) -> Ownership:
            return replace(super().take("-", partition, owner), topic=topic)

        def _place(self, ownership: Ownership) -> tuple[str, str, int]:
            return super()._place(_of_all_topics(ownership))


class SequencesOfAllTopics(Mutant):
    """One highest sequence per source and number of a partition, for all topics."""

    class tables(SqliteTables):  # noqa: N801
        def sequences(self, ownership: Ownership, sources: Collection[str]) -> dict[str, int]:
            return super().sequences(_of_all_topics(ownership), sources)

        def raise_sequences(self, ownership: Ownership, sequences: Mapping[str, int]) -> None:
            super().raise_sequences(_of_all_topics(ownership), sequences)


class ClaimsOfAllTopics(Mutant):
    """Keeps claims by the partition's number alone."""

    class tables(SqliteTables):  # noqa: N801
        def take(self, topic: str, partition: int, owner: str) -> Ownership:
            self._connection.execute(
                "DELETE FROM onceflow_claims WHERE consumer_group = ? AND partition = ? AND lease_until IS NOT NULL",
                (self._group, partition),
            )
            return super().take(topic, partition, owner)

        def put_claims(self, ownership: Ownership, keys: Mapping[EventId, EventKey], lease_s: float) -> set[EventId]:
            return super().put_claims(_of_all_topics(ownership), keys, lease_s)

        def lowest_open(self, ownership: Ownership) -> int | None:
            return super().lowest_open(_of_all_topics(ownership))

        def confirm_early(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
            super().confirm_early(_of_all_topics(ownership), keys)

        def early_below(self, ownership: Ownership, offset: int) -> list[EventKey]:
            return super().early_below(_of_all_topics(ownership), offset)

        def drop_claims(self, ownership: Ownership, events: Collection[EventId]) -> None:
            super().drop_claims(_of_all_topics(ownership), events)


class TakingDropsAllClaims(Mutant):
    """Drops the open claims of all partitions of a topic when one of them is taken."""

    class tables(SqliteTables):  # noqa: N801
        def take(self, topic: str, partition: int, owner: str) -> Ownership:
            self._connection.execute(
                "DELETE FROM onceflow_claims WHERE consumer_group = ? AND topic = ? AND lease_until IS NOT NULL",
                (self._group, topic),
            )
            return super().take(topic, partition, owner)


class ForgetsAllGroups(Mutant):
    """Expiry by the retention of one group, for all of them."""

    class tables(SqliteTables):  # noqa: N801
        def forget_expired(self, retention: Retention) -> int:
            groups = self._connection.execute("SELECT DISTINCT consumer_group FROM onceflow_ids").fetchall()
            return sum(SqliteTables(self._connection, group).forget_expired(retention) for (group,) in groups)


class AdmitsBlindly(Mutant):
    """Does not look in a unit for what was confirmed before its position passed it."""

    @contextmanager
    def unit(self) -> Iterator[Any]:
        class Tables(SqliteTables):
            def confirmed_early(self, events: Collection[EventId]) -> set[EventId]:  # noqa: ARG002
                return set()

        session = self._opened()
        with session.transaction(guarded=True):
            yield SqliteUnit(session, Tables(session.connection, self._group))


class AdmitsBeforeItLocks(Mutant):
    """Looks for ids when a unit admits and books them when it ends: two open units find the same event new."""

    @contextmanager
    def unit(self) -> Iterator[Any]:
        unit = _Late(self)
        yield unit
        with self._transaction() as tables:
            unit.book(tables)
            for arguments in unit.written:
                tables._connection.execute(*arguments)


class _Late:
    """A unit that is its own handle, and keeps what it has to do until it ends."""

    def __init__(self, store: AdmitsBeforeItLocks) -> None:
        self._store = store
        self._admitted: list[tuple[Ownership, Sequence[EventKey]]] = []
        self.written: list[tuple[Any, ...]] = []
        self.handle = self

    def execute(self, *arguments: Any) -> None:
        self.written.append(arguments)

    def admit(self, ownership: Ownership, keys: Sequence[EventKey]) -> list[Standing]:
        class Looked(Exception):
            """Nothing is booked yet."""

        with suppress(Looked), self._store._transaction() as tables:
            self.book(tables)
            standings = rules.admit(tables, ownership, storable(keys))
            raise Looked
        self._admitted.append((ownership, storable(keys)))
        return standings

    def book(self, tables: SqliteTables) -> None:
        for ownership, keys in self._admitted:
            rules.admit(tables, ownership, keys)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        before = len(self.written)
        try:
            yield
        except BaseException:
            del self.written[before:]
            raise


class PositionsOf32Bits(Mutant):
    """Cuts a position."""

    class tables(SqliteTables):  # noqa: N801
        def move(self, ownership: Ownership, next_offset: int) -> None:
            super().move(ownership, next_offset % 2**32)


class ClaimsOf32Bits(Mutant):
    """Cuts the offset of a claim."""

    class tables(SqliteTables):  # noqa: N801
        def put_claims(self, ownership: Ownership, keys: Mapping[EventId, EventKey], lease_s: float) -> set[EventId]:
            cut = {event: key._replace(offset=key.offset % 2**32) for event, key in keys.items()}
            return super().put_claims(ownership, cut, lease_s)


class SequencesOf32Bits(Mutant):
    """Cuts a sequence wherever it is compared."""

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        return super().claim(ownership, self._cut(keys), lease_s)

    def confirm(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        super().confirm(ownership, self._cut(keys))

    @staticmethod
    def _cut(keys: Sequence[EventKey]) -> list[EventKey]:
        return [key._replace(sequence=key.sequence % 2**32 if key.sequence else key.sequence) for key in keys]


class SequencesAreFloats(Mutant):
    """Keeps a sequence in 53 bits."""

    class tables(SqliteTables):  # noqa: N801
        def raise_sequences(self, ownership: Ownership, sequences: Mapping[str, int]) -> None:
            super().raise_sequences(ownership, {source: _as_float(number) for source, number in sequences.items()})


class ClaimedSequencesAreFloats(Mutant):
    """Keeps a sequence in 53 bits while its confirmation waits."""

    class tables(SqliteTables):  # noqa: N801
        def confirm_early(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
            super().confirm_early(
                ownership, [key._replace(sequence=key.sequence and _as_float(key.sequence)) for key in keys]
            )


def _as_float(number: int) -> int:
    return min(int(float(number)), 2**63 - 1)


# What is wrong, and the checks that must catch it (others may too).
MUTANTS: dict[type[Store], set[str]] = {
    NoFence: {"fencing-zombie_cannot_claim", "fencing-zombie_cannot_confirm", "fencing-zombie_cannot_admit"},
    EpochStays: {"fencing-epochs_rise", "fencing-racing_takes"},
    IdsApart: {"units-exception_undoes_all"},
    EffectsApart: {"units-exception_undoes_all", "fencing-zombie_cannot_admit"},
    SavepointKeepsAll: {"units-savepoint_undoes_a_part"},
    SavepointUndoesAll: {"units-savepoint_undoes_a_part"},
    ForgetsPositions: {"expiry-positions_stay"},
    ForgetsClaims: {"expiry-claims_stay"},
    ForgetsSequences: {"compact-never_expires"},
    ForgetsAtOneBound: {"expiry-within_time", "expiry-within_number"},
    NeverForgets: {"expiry-by_number"},
    LeaseForEver: {"claims-lease_runs_out"},
    LeaseOfNobody: {"claims-held_until_confirmed", "claims-held_for_another_partition", "compact-held_while_claimed"},
    LeaseIsNeverRenewed: {"claims-claimed_again_is_held_for_longer"},
    BoundToItsThread: {"claims-claimed_again_from_another_thread", "fencing-same_event_at_once"},
    ClaimsOutliveEpochs: {"claims-earlier_epoch_does_not_hold", "fencing-zombie_cannot_confirm"},
    ConfirmPassesOpenClaims: {"claims-confirmed_out_of_order"},
    ForgetsEarlyConfirmations: {"claims-confirmed_out_of_order", "claims-confirmed_early_is_known_elsewhere"},
    ClaimingIsHandling: {"claims-unconfirmed_comes_again", "compact-held_while_claimed"},
    IgnoresPosition: {"positions-below_is_handled", "positions-never_back", "expiry-positions_stay"},
    IgnoresSource: {"identity-another_source"},
    CutsNames: {"identity-odd_names"},
    CutsLongNames: {"identity-long_names"},
    OneGroup: {"identity-another_group"},
    FirstGroupForEver: {"identity-groups_one_after_the_other"},
    BooksOverGaps: {"positions-behind_its_owner"},
    SequenceMayRepeat: {"compact-at_or_below", "compact-never_expires"},
    SequencesOfAllPartitions: {"compact-per_source_and_partition"},
    BlindInOneCall: {"identity-repeated_in_one_call"},
    EmptiedIsNew: {"positions-emptied_under_a_reader"},
    ZeroIsNothing: {"positions-begins_in_front_of_the_first_event"},
    NotDurable: {"positions-survives_reopening"},
    PretendsToHaveUnits: {"units-no_units_without_transactions"},
    CheckThenClaim: {"fencing-same_event_at_once"},
    LooksThenClaims: {"fencing-same_event_at_once"},
    RefusesTheFirstUnit: {"fencing-same_event_in_two_units"},
    TopicsAreOne: {"positions-per_topic", "compact-per_topic", "claims-held_for_another_topic"},
    SequencesOfAllTopics: {"compact-per_topic"},
    ClaimsOfAllTopics: {"claims-held_for_another_topic"},
    TakingDropsAllClaims: {"claims-kept_when_another_partition_is_taken"},
    ForgetsAllGroups: {"expiry-of_another_group"},
    AdmitsBlindly: {"units-after_claims"},
    AdmitsBeforeItLocks: {"fencing-same_event_in_two_units"},
    PositionsOf32Bits: {"positions-large_offsets"},
    ClaimsOf32Bits: {"claims-at_large_offsets"},
    SequencesOf32Bits: {"compact-large"},
    SequencesAreFloats: {"compact-large"},
    ClaimedSequencesAreFloats: {"compact-large_and_confirmed_early"},
}


@pytest.fixture(autouse=True)
def _impatient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mutant never does is not waited for as long as what a slow machine does late."""
    if "unmutated" not in request.node.name:
        monkeypatch.setattr("onceflow.testing.stores.subject.PATIENCE_S", 0.5)
    if any(mutant.__name__ in request.node.name for mutant in (RefusesTheFirstUnit, AdmitsBeforeItLocks)):
        monkeypatch.setattr("onceflow.testing.stores.fencing._GRACE_S", 60.0)  # the second unit comes within the first


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_catches(mutant: type[Any], tmp_path: Path) -> None:
    checks = {str(check): check for check in STORE_CHECKS}
    for name in sorted(MUTANTS[mutant]):
        with pytest.raises((AssertionError, StoreError)):
            checks[name](_subject(mutant, tmp_path / f"{name}.db"))


def _subject(store: type[Any], path: Path) -> StoreSubject:
    if store is PretendsToHaveUnits:
        return StoreSubject(make=store)
    return StoreSubject(make=lambda: store(path), effects=SqliteLines(path))


def test_unmutated_passes(tmp_path: Path) -> None:
    """The frame that the mutants are made from is right itself, so it is the mutation that is caught."""
    path = tmp_path / "store.db"
    check_store(StoreSubject(make=lambda: Mutant(path), effects=SqliteLines(path)))


def test_names_every_failure(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with pytest.raises(ExceptionGroup) as caught:
        check_store(StoreSubject(make=lambda: NeverForgets(path), effects=SqliteLines(path)))
    notes = [note for error in caught.value.exceptions for note in error.__notes__]
    assert any("expiry-by_number" in note for note in notes)


def test_a_transactional_store_needs_effects(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup, match="checks failed"):
        check_store(StoreSubject(make=lambda: SqliteStore(tmp_path / "store.db")))
