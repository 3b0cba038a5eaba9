"""The tables in Redis: reads go to the server, writes are collected until ``commit`` runs them in one script.

Each read remembers what it found, and the script compares it again, so that the whole is one transaction::

    B claims an id, finds neither a claim nor the id, and stands still before its script; A, which has the same id in another
    partition, claims it, handles it and confirms it: the id is there, and the claim is gone again
    B's script finds the id that B did not find, and changes nothing; B looks again, and has a duplicate

What was found is not compared: an id goes only when it has expired, and a duplicate it is all the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from onceflow.reader.stores import rules
from onceflow.reader.stores.interface import EventKey, Ownership
from onceflow.reader.stores.redis_session import Session, partition_field, position_of, translated
from onceflow.reader.stores.tables import EventId, Position, event_id

_SLICE = 5000


class Conflict(Exception):
    """Another reader wrote between the reads and the script; nothing was written."""


class RedisTables:
    """One group's tables for one transaction. Reads see what the transaction itself is going to write."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._raw: dict[tuple[str, int], str] = {}  # positions as they were read
        self._positions: dict[tuple[str, int], Position] = {}
        self._sequences: dict[tuple[str, str], int] = {}
        self._absent: set[EventId] = set()  # ids that were not there when they were read
        self._ids: set[EventId] = set()
        self._claims: dict[EventId, tuple[str, str]] = {}  # as read, and as it shall be; empty is none

    def encoded(self, command: Sequence[Any]) -> list[bytes]:
        """The words of a command as they are sent. Raises redis-py's DataError for a value of a kind that Redis has not, and
        ValueError for a command that no script can run, or that only reads.
        """
        encode = self._session.client.get_encoder().encode
        name, *rest = (bytes(encode(word)) for word in command)
        words = [*name.split(), *rest]  # redis-py writes XGROUP CREATE as one
        self._session.check_command(words)
        return words

    def commit(self, commands: Sequence[Sequence[bytes]] = ()) -> None:
        """Runs the script with ``encoded`` commands. Raises StoreFenced, StoreLost, Conflict, CommitUnknown, EffectRefused."""
        if not (self._raw or commands):
            return
        words = [word for command in commands for word in command]
        status, _ = self._session.apply(self._request([len(command) for command in commands]), words)
        if status == "moved":
            self._check_fences()
        if status != "done":
            raise Conflict

    def position(self, topic: str, partition: int) -> Position | None:
        if (topic, partition) not in self._positions:
            raw = self._session.position(topic, partition)
            if raw is None:
                return None
            self._raw[topic, partition] = raw
            self._positions[topic, partition] = position_of(raw)
        return self._positions[topic, partition]

    def move(self, ownership: Ownership, next_offset: int) -> None:
        self._positions[ownership.topic, ownership.partition] = Position(ownership.epoch, next_offset)

    def sequences(self, ownership: Ownership, sources: Collection[str]) -> dict[str, int]:
        place, wanted = _place(ownership), list(sources)
        with translated():
            found = self._session.client.hmget(self._session.key(f"sequences:{place}"), wanted)
        stored = {source: int(number) for source, number in zip(wanted, found, strict=True) if number is not None}
        own = {source: self._sequences[place, source] for source in wanted if (place, source) in self._sequences}
        return stored | own

    def raise_sequences(self, ownership: Ownership, sequences: Mapping[str, int]) -> None:
        place = _place(ownership)
        self._sequences.update({(place, source): number for source, number in sequences.items()})

    def book(self, events: Collection[EventId]) -> set[EventId]:
        fresh = set(events) - self.known(events)
        self._ids |= fresh
        return fresh

    def known(self, events: Collection[EventId]) -> set[EventId]:
        found = self._ids.intersection(events)
        wanted = list(events)
        for start in range(0, len(wanted), _SLICE):
            part = wanted[start : start + _SLICE]
            with translated():
                scores = self._session.client.zmscore(self._session.key("ids"), [_member(event) for event in part])
            found.update(event for event, score in zip(part, scores, strict=True) if score is not None)
        self._absent.update(event for event in wanted if event not in found)
        return found

    def confirmed_early(self, events: Collection[EventId]) -> set[EventId]:
        if not events or not (self._claims or self._has_claims()):
            return set()
        return {event for event, claim in self._read_claims(events).items() if claim and claim[3] is None}

    def _has_claims(self) -> bool:
        """The inbox has none, but where the group claimed before."""
        with translated():
            return bool(self._session.client.exists(self._session.key("claims")))

    def put_claims(self, ownership: Ownership, keys: Mapping[EventId, EventKey], lease_s: float) -> set[EventId]:
        now_ms = self._session.now_ms()
        claims = self._read_claims(keys)
        refused = {event for event, key in keys.items() if not _is_free(claims[event], ownership, key, now_ms)}
        for event, key in keys.items():
            if event not in refused:
                self._put(ownership, key, now_ms + round(lease_s * 1000))
        return refused

    def lowest_open(self, ownership: Ownership) -> int | None:
        changed = {event for event, (before, after) in self._claims.items() if before != after}
        name = self._session.key(f"open:{_place(ownership)}")
        with translated():
            found = self._session.client.zrange(name, 0, len(changed), withscores=True)
        return next((int(offset) for member, offset in found if _event(member) not in changed), None)

    def confirm_early(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        self._read_claims([event_id(key) for key in keys])
        for key in keys:
            self._put(ownership, key, None)

    def early_below(self, ownership: Ownership, offset: int) -> list[EventKey]:
        name = self._session.key(f"early:{_place(ownership)}")
        with translated():
            members = self._session.client.zrange(name, "-inf", f"({offset}", byscore=True)
        claims = self._read_claims([_event(member) for member in members])
        return [EventKey(claim[1], *event, claim[2]) for event, claim in claims.items() if claim]

    def drop_claims(self, ownership: Ownership, events: Collection[EventId]) -> None:
        for event, claim in self._read_claims(events).items():
            if claim and claim[0] == _place(ownership):
                self._claims[event] = (self._claims[event][0], "")

    def _read_claims(self, events: Collection[EventId]) -> dict[EventId, Any]:
        """Each event's claim as it will be after this transaction, [place, offset, sequence, lease in ms], or None."""
        unread = [event for event in events if event not in self._claims]
        for start in range(0, len(unread), _SLICE):
            part = unread[start : start + _SLICE]
            with translated():
                found = self._session.client.hmget(self._session.key("claims"), [_member(event) for event in part])
            for event, raw in zip(part, found, strict=True):
                text = raw.decode() if raw else ""
                self._claims[event] = (text, text)
        return {event: json.loads(text) if (text := self._claims[event][1]) else None for event in events}

    def _put(self, ownership: Ownership, key: EventKey, lease_ms: int | None) -> None:
        claim = json.dumps([_place(ownership), key.offset, key.sequence, lease_ms])
        self._claims[event_id(key)] = (self._claims[event_id(key)][0], claim)

    def _request(self, commands: Sequence[int]) -> bytes:
        """What the script compares and writes."""
        positions = [
            [partition_field(*place), raw, _moved(raw, self._positions[place])] for place, raw in self._raw.items()
        ]
        claims = [[_member(event), *pair] for event, pair in self._claims.items() if pair[0] or pair[1]]
        request = {
            "positions": positions,
            "sequences": [[*place, str(number)] for place, number in self._sequences.items()],
            "ids": [_member(event) for event in self._ids],
            "absent": [_member(event) for event in self._absent - self._ids],
            "claims": claims,
            "commands": commands,
        }
        return json.dumps(request, ensure_ascii=False).encode()

    def _check_fences(self) -> None:
        for (topic, partition), raw in self._raw.items():
            read = Ownership(topic, partition, position_of(raw).epoch, None)
            now = self._session.position(topic, partition)
            if now is None:
                raise rules.lost(read)
            if position_of(now).epoch != read.epoch:
                raise rules.fenced(read, position_of(now))


def _moved(raw: str, position: Position) -> str:
    """The row with another offset: the owner's name stays."""
    following = "" if position.next_offset is None else position.next_offset
    return f"{position.epoch} {following} {raw.split(' ', 2)[2]}"


def _is_free(claim: Any, ownership: Ownership, key: EventKey, now_ms: int) -> bool:
    if claim is None:
        return True
    place, offset, _, lease_ms = claim
    return lease_ms is not None and (lease_ms <= now_ms or (place, offset) == (_place(ownership), key.offset))


def _place(ownership: Ownership) -> str:
    return partition_field(ownership.topic, ownership.partition)


def _member(event: EventId) -> str:
    return "\0".join(event)


def _event(member: bytes) -> EventId:
    source, _, event = member.decode().partition("\0")
    return (source, event)
