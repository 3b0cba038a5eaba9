"""The definitions of some anomalies, spelled out row by row: slow, without an index, of histories without unknown outcomes.

What it shares with the checker are the words of docs/history-format.md alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from random import Random
from typing import Any

from onceflow.verify.history import Recorder
from onceflow.verify.history.recorder import Row, assign, gone, poll, send, window

OFFSETS, VALUES = 5, 5
Found = dict[str, set[tuple[Any, ...]]]
Given = dict[str, Any]


def random_history(seed: int) -> Recorder:
    """A few operations of three processes on two keys, of which nothing need fit together."""
    random, history = Random(seed), Recorder()
    statuses: dict[int, str] = {}
    for _ in range(random.randint(3, 9)):
        status, txn = random.choice(["ok", "ok", "ok", "fail"]), None
        if random.random() < 0.6:
            txn = random.randint(1, 4)
            status = statuses.setdefault(txn, status)
        rows = [_random_row(random) for _ in range(random.randint(1, 4))]
        history.add(random.choice("abc"), *rows, status=status, txn=txn)
    return history


def _random_row(random: Random) -> Row:
    key, value, offset = random.choice("kj"), random.randint(1, VALUES), random.randrange(OFFSETS)
    return random.choices(
        [
            send(key, value, random.choice([offset, None])),
            poll(key, offset, value, random.choice([None, "g"])),
            window(key, offset, random.randint(offset, OFFSETS)),
            assign(key, random.choice([offset, None])),
            gone(key, offset, offset + 1),
        ],
        [35, 40, 10, 10, 5],
    )[0]


class Reference:
    """What is wrong with a history, by anomaly."""

    def __init__(self, rows: list[Given]) -> None:
        self.rows = rows
        self.sends = [row for row in rows if row["kind"] == "send"]
        self.polls = [row for row in rows if row["kind"] == "poll"]

    def found(self) -> Found:
        return {
            "duplicated": set(self._duplicated()),
            "inconsistent_offsets": set(self._inconsistent()),
            "phantom": set(self._phantoms()),
            "aborted_read": set(self._aborted()),
            "consumed_twice": set(self._consumed_twice()),
            "intermediate_read": set(self._intermediate()),
            **self._order(),
        }

    def has_circle(self) -> bool:
        """Whether transactions read each other's records in a circle."""
        edges = defaultdict(set)
        for row in self.polls:
            writer = self._writer(row)
            if _is_ok(row) and writer and None is not writer["txn"] != row["txn"] is not None:
                edges[writer["txn"]].add(row["txn"])
        return any(txn in _reached(edges, txn) for txn in [*edges])

    def _writer(self, row: Given) -> Given | None:
        """Of those who sent what was read one at that place, else of unknown place; better one that is ok."""
        senders = [each for each in self.sends if _record(each) == _record(row)]

        def rank(each: Given) -> tuple[int, bool]:
            place = 0 if each["offset"] == row["offset"] else 1 if each["offset"] is None else 2
            return place, not _is_ok(each)

        return min(senders, key=rank, default=None)

    @cached_property
    def _visible(self) -> list[Given]:
        return [row for row in self.polls if (writer := self._writer(row)) is None or _is_ok(writer)]

    @cached_property
    def _known(self) -> list[Given]:
        """A poll of each place in the log that nobody dropped, so far as is known: the first one."""
        dropped = [row for row in self.rows if row["kind"] == "gone" and _is_ok(row)]
        left = [row for row in self._visible if not any(_covers(each, row) for each in dropped)]
        return [*{_place(row): row for row in reversed(left)}.values()]

    def _placed(self) -> list[Given]:
        return [row for row in self.sends if _is_ok(row) and row["offset"] is not None] + self._visible

    def _duplicated(self) -> Iterator[tuple[Any, ...]]:
        for record in {*map(_record, self.rows)}:
            places = {row["offset"] for row in self._placed() if _record(row) == record}
            txns = {row["txn"] for row in self.sends if _is_ok(row) and _record(row) == record} - {None}
            if len(places) > 1 or len(txns) > 1:
                yield record

    def _inconsistent(self) -> Iterator[tuple[Any, ...]]:
        acknowledged = [row for row in self.sends if row["offset"] is not None and row["txn"] is not None]
        values = defaultdict(set)
        for row in self._placed() + acknowledged:
            values[row["key"], row["offset"]].add(row["value"])
        yield from (place for place, different in values.items() if len(different) > 1)

    def _phantoms(self) -> Iterator[tuple[Any, ...]]:
        written = {row["key"] for row in self.sends}
        yield from (_read(row) for row in self.polls if row["key"] in written and self._writer(row) is None)

    def _aborted(self) -> Iterator[tuple[Any, ...]]:
        for row in self.polls:
            writer = self._writer(row)
            if _is_ok(row) and writer and not _is_ok(writer):
                yield _read(row)

    def _consumed_twice(self) -> Iterator[tuple[Any, ...]]:
        txns = defaultdict(set)
        for row in self.polls:
            if _is_ok(row) and row["group"] and row["txn"] is not None:
                txns[row["key"], row["offset"]].add(row["txn"])
        yield from (place for place, different in txns.items() if len(different) > 1)

    def _intermediate(self) -> Iterator[tuple[Any, ...]]:
        """Pairs of an operation and a transaction of which it read a part."""
        for op in {row["op"] for row in self.rows if _is_ok(row)}:
            mine = [row for row in self.rows if row["op"] == op]
            read = [row for row in mine if row["kind"] == "poll"]
            asked = {(key, offset) for key in "kj" for offset in _asked(mine, key)} - {*map(_place, read)}
            txns = {writer["txn"] for row in read if (writer := self._writer(row))} - {None}
            for row in self._known:
                writer = self._writer(row)
                if writer and writer["txn"] in txns and _place(row) in asked:
                    yield op, writer["txn"]

    def _order(self) -> Found:
        found: Found = {
            f"{inside}{name}": set() for inside in ("", "int_") for name in ("poll_skip", "nonmonotonic_poll")
        }
        stands: dict[
            tuple[str, str], tuple[int | None, object]
        ] = {}  # of process and key: where, and the unit that came there
        for number, row in enumerate(self.rows):
            lane = row["process"], row["key"]
            if row["kind"] == "assign" and (_is_ok(row) or row["txn"] is not None):
                stands[lane] = row["offset"], None
            if row["kind"] == "poll" and _is_ok(row):
                at, before = stands.get(lane, (None, None))
                inside = "int_" if before == _unit(row) else ""
                if at is not None and row["offset"] < at:
                    found[f"{inside}nonmonotonic_poll"].add((number,))
                between = [each for each in self._known if each["key"] == row["key"] and each["offset"] < row["offset"]]
                if at is not None and any(at <= each["offset"] for each in between):
                    found[f"{inside}poll_skip"].add((number,))
                stands[lane] = row["offset"] + 1, _unit(row)
        return found


def _is_ok(row: Given) -> bool:
    return bool(row["status"] == "ok")


def _record(row: Given) -> tuple[Any, ...]:
    return row["key"], row["value"]


def _place(row: Given) -> tuple[Any, ...]:
    return row["key"], row["offset"]


def _read(row: Given) -> tuple[Any, ...]:
    return row["key"], row["offset"], row["value"]


def _unit(row: Given) -> tuple[str, int]:
    return ("op", row["op"]) if row["txn"] is None else ("txn", row["txn"])


def _covers(dropped: Given, row: Given) -> bool:
    return bool(dropped["key"] == row["key"] and dropped["offset"] <= row["offset"] < dropped["until"])


def _asked(mine: list[Given], key: str) -> set[int]:
    """The offsets for which an operation asked: its windows', else from the first to the last poll between two ``assign``."""
    mine = [row for row in mine if row["key"] == key]
    if windows := [row for row in mine if row["kind"] == "window"]:
        return {offset for row in windows for offset in range(row["offset"], row["until"])}
    asked, part = set[int](), list[int]()
    for row in mine:
        if row["kind"] == "assign":
            part = []
        if row["kind"] == "poll":
            part.append(row["offset"])
            asked |= {*range(min(part), max(part) + 1)}
    return asked


def _reached(edges: dict[int, set[int]], begin: int) -> set[int]:
    reached, queue = set[int](), [begin]
    while queue:
        new = edges.get(queue.pop(), set()) - reached
        reached |= new
        queue += new
    return reached
