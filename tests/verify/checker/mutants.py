"""Damage by name: each takes the rows of a good history and gives the rows of a bad one."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Damage = Callable[["Rows"], list[Row]]


@dataclass(frozen=True)
class Mutant:
    """A damage and the anomalies, exactly these, that a history must be found to have after it.

    ``told``: what of its output, which is held against the copiers' function then. ``rows``: how many the smallest history that
    shows it has at most.
    """

    name: str
    damage: Damage
    anomalies: tuple[str, ...]
    told: str = ""
    rows: int = 5


MUTANTS: list[Mutant] = []


def shows(*anomalies: str, rows: int = 5) -> Callable[[Damage], Damage]:
    def register(damage: Damage) -> Damage:
        MUTANTS.append(Mutant(damage.__name__, damage, anomalies, rows=rows))
        return damage

    return register


class Rows:
    """The rows of a good history, with questions that the mutants ask to find a place worth damaging."""

    def __init__(self, rows: list[Row], seed: int) -> None:
        self.all = rows
        self.random = random.Random(seed)
        self.gone = [row for row in rows if row["kind"] == "gone"]
        self.readers: dict[tuple[str, int], set[str]] = defaultdict(set)
        self.place: dict[tuple[str, int], int] = {}
        for row in self.of("poll"):
            self.readers[row["key"], row["value"]].add(row["process"])
            self.place[row["key"], row["value"]] = row["offset"]
        self.sent = Counter((row["key"], row["value"]) for row in self.of("send"))
        self.size = Counter(row["txn"] for row in self.of("send"))
        self.last_op = {row["txn"]: row["op"] for row in rows}
        self.by_process: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            self.by_process[row["process"]].append(row)

    def of(self, kind: str, process: str | None = None) -> list[Row]:
        return [row for row in self.all if row["kind"] == kind and process in (None, row["process"])]

    def pick(self, rows: list[Row], number: int = 1) -> list[Row]:
        assert len(rows) >= number, "the history has no place for this damage"
        return self.random.sample(rows, number)

    def kept(self, row: Row) -> bool:
        """Whether the log surely still has it."""
        offset = self.place.get((row["key"], row["value"]))
        inside = [each for each in self.gone if each["key"] == row["key"] and offset is not None]
        return offset is not None and not any(each["offset"] <= offset < each["until"] for each in inside)

    def acknowledged(self) -> list[Row]:
        """Sends that committed at a known offset, at the first attempt, and were read."""
        return [
            row
            for row in self.of("send")
            if row["status"] == "ok" and row["offset"] is not None and self.sent[row["key"], row["value"]] == 1
            if self.kept(row)
        ]

    def last(self, key: str) -> int:
        return max(offset for (name, _), offset in self.place.items() if name == key)

    def is_last(self, row: Row) -> bool:
        return bool(self.place[row["key"], row["value"]] == self.last(row["key"]))

    def without_reads_of(self, row: Row) -> list[Row]:
        same = (row["key"], row["value"])
        return [each for each in self.all if each["kind"] != "poll" or (each["key"], each["value"]) != same]

    def and_then(self, *new: Row) -> list[Row]:
        """The rows and after them operations of a row each."""
        number = max(row["op"] for row in self.all)
        common = {"status": "ok", "txn": None, "value": None, "group": None, "until": None}
        return [*self.all, *({**common, "op": number + 1 + nth, **row} for nth, row in enumerate(new))]

    def with_end_cut(self, row: Row) -> list[Row]:
        """The rows with this record's log ending before it, for the last reader and for who asks for the ends."""
        end = self.place[row["key"], row["value"]]
        cut = {"window": {"until": end}, "log_end": {"offset": end}, "stable_end": {"offset": end}}
        return [{**each, **cut.get(each["kind"], {})} if each["key"] == row["key"] else each for each in self.all]

    def with_after(self, row: Row, *new: Row) -> list[Row]:
        """The rows with others in the same operation behind one of them."""
        at = next(number for number, each in enumerate(self.all) if each is row)
        return [*self.all[: at + 1], *({**row, **each} for each in new), *self.all[at + 1 :]]

    def without(self, row: Row) -> list[Row]:
        return [each for each in self.all if each is not row]

    def copies(self) -> dict[int, list[Row]]:
        """The sends of each committed transaction."""
        found: dict[int, list[Row]] = defaultdict(list)
        for row in self.acknowledged():
            if row["txn"] is not None:
                found[row["txn"]].append(row)
        return found

    def at_once(self) -> list[tuple[Row, Row]]:
        """A send each of two transactions; the second one's last operation was under way when the first one's send had ended."""
        ends = {row["txn"]: number for number, row in enumerate(self.all) if row["txn"] is not None}
        told = {row["op"]: number for number, row in enumerate(self.all)}
        sends = sorted((rows[0] for rows in self.copies().values()), key=lambda row: ends[row["txn"]])
        pairs = itertools.pairwise(sends)
        return [(one, other) for one, other in pairs if self._begun_after(ends[other["txn"]]) < told[one["op"]]]

    def _begun_after(self, number: int) -> int:
        """The row behind which this one's operation began."""
        last = self.all[number]
        before = (n for n in range(number, -1, -1) if self.all[n]["process"] == last["process"])
        return next((n for n in before if self.all[n]["op"] != last["op"]), -1)


@shows("lost")
def drop_a_committed_record(rows: Rows) -> list[Row]:
    alone = [row for row in rows.acknowledged() if row["txn"] is None and not rows.is_last(row)]
    return rows.without_reads_of(rows.pick(alone)[0])


@shows("unseen")
def drop_the_last_record(rows: Rows) -> list[Row]:
    return rows.without_reads_of(rows.pick([r for r in rows.acknowledged() if r["txn"] is None and rows.is_last(r)])[0])


@shows("lost")
def cut_the_log_before_the_last_record(rows: Rows) -> list[Row]:
    """And all readers came too late to see it."""
    alone = [row for row in rows.acknowledged() if row["txn"] is None and rows.is_last(row)]
    row = rows.pick(alone)[0]
    rows.all = rows.without_reads_of(row)
    return rows.with_end_cut(row)


@shows("lost")
def cut_the_log_after_the_last_record_was_read(rows: Rows) -> list[Row]:
    alone = [row for row in rows.acknowledged() if row["txn"] is None and rows.is_last(row)]
    row = rows.pick([row for row in alone if len(rows.readers[row["key"], row["value"]]) > 1])[0]
    rows.all = [each for each in rows.all if not (each["process"] == "final" and _same_record(each, row))]
    return rows.with_end_cut(row)


@shows("lost")
def forget_the_last_record_after_it_was_read(rows: Rows) -> list[Row]:
    """The last reader asks for its place as well."""
    alone = [row for row in rows.acknowledged() if row["txn"] is None and rows.is_last(row)]
    row = rows.pick([row for row in alone if len(rows.readers[row["key"], row["value"]]) > 1])[0]
    return [each for each in rows.all if not (each["process"] == "final" and _same_record(each, row))]


def _same_record(row: Row, sent: Row) -> bool:
    return bool(row["kind"] == "poll" and (row["key"], row["value"]) == (sent["key"], sent["value"]))


@shows("torn_transaction")
def tear_a_transaction(rows: Rows) -> list[Row]:
    whole = [sends for sends in rows.copies().values() if len(sends) > 1]
    return rows.without_reads_of(rows.pick(rows.random.choice(whole))[0])


@shows("duplicated")
def append_a_record_again(rows: Rows) -> list[Row]:
    row = rows.pick(rows.acknowledged())[0]
    again = {"offset": rows.last(row["key"]) + 5, "key": row["key"], "value": row["value"]}
    return rows.and_then({"process": "late reader", "kind": "poll", **again})


@shows("inconsistent_offsets", "phantom")
def corrupt_a_value_on_its_way_to_one_reader(rows: Rows) -> list[Row]:
    row = rows.pick([row for row in rows.of("poll", "final") if len(rows.readers[row["key"], row["value"]]) > 1])[0]
    return [{**each, "value": 10**9} if each is row else each for each in rows.all]


@shows("duplicated", "inconsistent_offsets")
def give_one_reader_another_record_in_its_place(rows: Rows) -> list[Row]:
    known = {(row["key"], row["value"]) for row in rows.acknowledged()}
    shared = [row for row in _read_by_others(rows) if (row["key"], row["value"]) in known]
    row = rows.pick(shared)[0]
    other = rows.pick([each for each in shared if each["key"] == row["key"] and each is not row])[0]
    return [{**each, "value": other["value"]} if each is row else each for each in rows.all]


@shows("aborted_read")
def show_an_aborted_record(rows: Rows) -> list[Row]:
    failed = [row for row in rows.of("send") if row["status"] == "fail" and row["offset"] is not None and row["txn"]]
    row = rows.pick(failed)[0]
    return rows.and_then({"process": "late reader", "kind": "poll"} | {n: row[n] for n in ("key", "offset", "value")})


@shows("precommitted_read")
def show_a_transaction_its_own_record(rows: Rows) -> list[Row]:
    row = rows.pick([row for row in rows.acknowledged() if row["txn"] is not None])[0]
    return rows.with_after(row, {"kind": "poll"})


@shows("wr_cycle")
def let_two_transactions_read_each_other(rows: Rows) -> list[Row]:
    ((one, other),) = rows.random.sample(rows.at_once(), 1)
    first = rows.with_after(one, {"kind": "poll", **{name: other[name] for name in ("key", "offset", "value")}})
    return Rows(first, 0).with_after(other, {"kind": "poll", **{n: one[n] for n in ("key", "offset", "value")}})


def _read_by_others(rows: Rows) -> list[Row]:
    """Final polls in the middle of a partition whose records others saw too, and that were not compacted."""
    final = rows.of("poll", "final")
    return [
        row
        for before, row, after in zip(final, final[1:], final[2:], strict=False)
        if before["key"] == row["key"] == after["key"] and rows.kept(row)
        if len(rows.readers[row["key"], row["value"]]) > 1
    ]


@shows("int_poll_skip")
def skip_a_record_inside_one_operation(rows: Rows) -> list[Row]:
    row = rows.pick([row for row in _read_by_others(rows) if row["key"].startswith("in")])[0]
    return Rows(rows.and_then(_read_later(row)), 0).without(row)


def _read_later(row: Row) -> Row:
    """Another reader finds the record there after the end: it was hidden, not lost."""
    return {"process": "late reader", "kind": "poll", **{name: row[name] for name in ("key", "offset", "value")}}


@shows("int_poll_skip", "intermediate_read")
def hide_a_record_of_a_transaction_from_one_reader(rows: Rows) -> list[Row]:
    large = {row["value"] for sends in rows.copies().values() if len(sends) > 1 for row in sends}
    read = [row for row in _read_by_others(rows) if row["key"].startswith("out") and row["value"] in large]
    row = rows.pick(read)[0]
    return Rows(rows.and_then(_read_later(row)), 0).without(row)


@shows("intermediate_read")
def hide_the_end_of_a_transaction_from_one_reader(rows: Rows) -> list[Row]:
    """With all that stands behind it, so that nothing is skipped; another reader finds it there later."""
    large = [sends for sends in rows.copies().values() if len(sends) > 1]
    ends = {(sends[-1]["key"], sends[-1]["value"]) for sends in large}
    final = [row for row in rows.of("poll", "final") if row["key"].startswith("out")]
    row = rows.pick([row for row in final if (row["key"], row["value"]) in ends and rows.kept(row)])[0]
    hidden = [each for each in final if each["key"] == row["key"] and each["offset"] >= row["offset"]]
    after = rows.and_then(*map(_read_later, hidden))
    return [each for each in after if all(each is not one for one in hidden)]


@shows("poll_skip")
def skip_a_whole_poll(rows: Rows) -> list[Row]:
    """Of a reader that had a position, and goes on behind it."""
    events = [row for row in rows.of("poll") + rows.of("assign") if row["process"] == "reader-0"]
    lanes: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(events, key=lambda row: int(row["op"])):
        lanes[row["key"]].append(row)
    chosen = []
    for lane in lanes.values():
        operations = list(dict.fromkeys(row["op"] for row in lane))
        kinds = {op: {row["kind"] for row in lane if row["op"] == op} for op in operations}
        for before, op, after in zip(operations, operations[1:], operations[2:], strict=False):
            reads = [row for row in lane if row["op"] == op]
            known = any(map(rows.kept, reads)) and all(len(rows.readers[row["key"], row["value"]]) > 1 for row in reads)
            if known and kinds[before] == kinds[op] == kinds[after] == {"poll"}:
                chosen.append({"op": op, "key": reads[0]["key"]})
    lost = rows.pick(chosen)[0]
    return [each for each in rows.all if (each["op"], each["key"]) != (lost["op"], lost["key"])]


@shows("nonmonotonic_poll")
def read_again(rows: Rows) -> list[Row]:
    row = rows.of("poll", "final")[0]
    rows.all = rows.and_then({**row, "process": "late reader", "op": 10**6})
    return [*rows.all, {**rows.all[-1], "op": 10**6 + 1}]


@shows("int_nonmonotonic_poll")
def read_again_inside_one_operation(rows: Rows) -> list[Row]:
    return rows.with_after(rows.pick(rows.of("poll", "final"))[0], {})


def _swap_in_the_log(rows: Rows, one: Row, other: Row) -> list[Row]:
    """Wherever the one stood stands the other; both were acknowledged where they are now."""
    values = {one["value"]: other["value"], other["value"]: one["value"]}

    def after(row: Row) -> Row:
        if row["kind"] == "poll" and row["key"] == one["key"] and row["value"] in values:
            return {**row, "value": values[row["value"]]}
        if row is one or row is other:
            return {**row, "offset": other["offset"] if row is one else one["offset"]}
        return row

    return [after(row) for row in rows.all]


def _neighbours(rows: Rows, same_operation: bool) -> list[tuple[Row, Row]]:
    lanes: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows.of("send"):
        if row["status"] == "ok":
            lanes[row["process"], row["key"]].append(row)
    good = {id(row) for row in rows.acknowledged()}
    return [
        (one, other)
        for lane in lanes.values()
        for one, other in itertools.pairwise(lane)
        if id(one) in good and id(other) in good and (one["op"] == other["op"]) == same_operation
    ]


def _separated(rows: Rows) -> list[tuple[Row, Row]]:
    """Records of two operations that have no other of theirs between or beside them."""
    size = Counter(row["op"] for row in rows.of("send"))
    return [pair for pair in _neighbours(rows, False) if all(size[row["op"]] == 1 for row in pair)]


@shows("nonmonotonic_send")
def swap_what_was_sent_one_after_the_other(rows: Rows) -> list[Row]:
    return _swap_in_the_log(rows, *rows.random.choice([p for p in _separated(rows) if p[0]["txn"] is None]))


@shows("int_nonmonotonic_send")
def swap_what_was_sent_in_one_operation(rows: Rows) -> list[Row]:
    size = Counter((row["op"], row["key"]) for row in rows.of("send"))
    pairs = [p for p in _neighbours(rows, True) if p[0]["txn"] is None and size[p[0]["op"], p[0]["key"]] == 2]
    return _swap_in_the_log(rows, *rows.random.choice(pairs))


@shows("consumed_twice")
def let_another_transaction_consume_it_too(rows: Rows) -> list[Row]:
    row = rows.pick([row for row in rows.of("poll") if row["group"] and row["status"] == "ok" and rows.kept(row)])[0]
    same = {name: row[name] for name in ("kind", "key", "offset", "value", "group")}
    return rows.and_then({**same, "process": "zombie", "txn": 10**6})


@shows("consumed_never")
def let_nobody_consume_it(rows: Rows) -> list[Row]:
    """It was polled, but not for the group, whose positions are behind it."""
    polls = [row for row in rows.of("poll") if row["group"] and row["status"] != "fail"]
    times = Counter((row["key"], row["offset"]) for row in polls)
    given = {
        row["key"]: row["offset"] for row in rows.of("position") if row["txn"] is not None and row["status"] == "ok"
    }
    first = {key: min(row["offset"] for row in polls if row["key"] == key) for key in given}
    between = [row for row in polls if row["key"] in given and first[row["key"]] < row["offset"] < given[row["key"]]]
    chosen = rows.pick([row for row in between if times[row["key"], row["offset"]] == 1 and rows.kept(row)])[0]
    return [{**row, "group": None} if row is chosen else row for row in rows.all]


@shows("consumed_never")
def let_a_timer_commit_what_only_failed_transactions_took(rows: Rows) -> list[Row]:
    """The consumer of a copier has ``enable.auto.commit`` left on: its group goes to the end, and no transaction gave that."""
    key = rows.pick(rows.of("poll", "final"))[0]["key"]
    if not key.startswith("in"):
        key = key.replace("out", "in")
    polls = [row for row in rows.of("poll", "final") if row["key"] == key]
    position = {"kind": "position", "key": key, "group": "timer"}
    copier = {"process": "copier with a timer", "status": "fail", "txn": 10**6}
    taken = {name: polls[0][name] for name in ("kind", "key", "offset", "value")}
    return rows.and_then(
        {**position, "process": "probe", "offset": 0},
        {**copier, **taken, "group": "timer"},
        {**copier, **position, "offset": polls[0]["offset"] + 1},
        {**position, "process": "probe", "offset": polls[-1]["offset"] + 1},
    )


@shows("effect_repeated")
def apply_an_effect_again(rows: Rows) -> list[Row]:
    return rows.with_after(rows.pick(rows.of("effect"))[0], {})


@shows("effect_missing")
def never_apply_an_effect(rows: Rows) -> list[Row]:
    """Of what is known to be meant."""
    never = rows.pick(_known_effects(rows))[0]["value"]
    return [row for row in rows.all if row["kind"] != "effect" or row["value"] != never]


@shows("effect_missing")
def forget_an_effect_after_it_was_found(rows: Rows) -> list[Row]:
    """The last look at its target does not find it any more."""
    twice = Counter(row["value"] for row in rows.of("effect"))
    found = [
        row for row in _known_effects(rows) if row["op"] == rows.of("effect")[-1]["op"] and twice[row["value"]] == 2
    ]
    return rows.without(rows.pick(found)[0])


def _known_effects(rows: Rows) -> list[Row]:
    meant = {row["value"] for row in rows.of("send", "bookkeeper") if row["status"] == "ok"}
    return [row for row in rows.of("effect") if row["value"] in meant]


@shows("phantom")
def apply_an_effect_that_nobody_meant(rows: Rows) -> list[Row]:
    return rows.with_after(rows.pick(rows.of("effect"))[0], {"value": 10**9})


@shows("hung_transaction")
def leave_a_transaction_open(rows: Rows) -> list[Row]:
    end = rows.pick(rows.of("log_end"))[0]
    return [{**row, "offset": row["offset"] + 1} if row is end else row for row in rows.all]


@shows("hung_transaction")
def lose_the_end_of_a_transaction_after_it_was_read(rows: Rows) -> list[Row]:
    """The last stable offset goes back behind what readers of committed records got."""
    ends = [
        row for row in rows.of("stable_end") if row["key"].startswith("out") and rows.last(row["key"]) < row["offset"]
    ]
    end = rows.pick(ends)[0]
    return [{**row, "offset": rows.last(row["key"])} if row is end else row for row in rows.all]


@shows("stuck_progress")
def leave_the_last_record_to_nobody(rows: Rows) -> list[Row]:
    """And nobody says that it was committed as taken."""
    last = _last_position(rows)
    below = [row["offset"] for row in rows.of("poll") if _is_below(row, last) and rows.kept(row)]
    unsaid = [row for row in rows.all if not (row["kind"] == "position" and row["txn"] is not None)]
    return [{**row, "offset": max(below)} if row is last else row for row in unsaid]


@shows("torn_progress")
def commit_a_position_beside_the_transaction(rows: Rows) -> list[Row]:
    last = _last_position(rows)
    return [{**row, "offset": row["offset"] + 10**6} if row is last else row for row in rows.all]


@shows("stuck_progress", "torn_progress")
def set_a_position_back(rows: Rows) -> list[Row]:
    """To where no transaction of unknown outcome may have set it."""
    last = _last_position(rows)
    unknown = {row["offset"] for row in rows.of("position") if row["key"] == last["key"] and row["status"] == "info"}
    below = {row["offset"] for row in rows.of("poll") if _is_below(row, last) and rows.kept(row)} - unknown
    return [{**row, "offset": max(below)} if row is last else row for row in rows.all]


@shows("torn_progress", rows=8)
def see_half_of_what_a_transaction_gave(rows: Rows) -> list[Row]:
    """One of its positions, and beside it one of another transaction, which had ended when that one began."""
    given = [row for row in rows.of("position") if row["txn"] is not None and row["status"] != "fail"]
    givers, of_txn, looks = defaultdict(list), defaultdict(list), defaultdict(list)
    for row in given:
        givers[row["key"], row["offset"]].append(row)
        of_txn[row["txn"]].append(row)
    for row in rows.of("position", "watcher"):
        looks[row["op"]].append(row)
    halves = []
    for shows_it, seen in (pair for look in looks.values() for pair in itertools.permutations(look, 2)):
        mine = givers[shows_it["key"], shows_it["offset"]]
        gave = [row for row in of_txn[mine[0]["txn"]] if row["key"] == seen["key"]] if len(mine) == 1 else []
        began = _ended_before(rows, gave[0]) if gave else -1
        for (key, offset), older in givers.items() if gave else ():
            if key == seen["key"] and offset and all(_ended(rows, each) <= began for each in older):
                halves.append((seen, offset))
    seen, offset = rows.random.choice(halves)
    return [{**row, "offset": offset} if row is seen else row for row in rows.all]


def _ended(rows: Rows, row: Row) -> int:
    """The last operation of its transaction; that of one of unknown outcome may end whenever."""
    return rows.last_op[row["txn"]] if row["status"] == "ok" else len(rows.all)


def _ended_before(rows: Rows, row: Row) -> int:
    """The last operation of its process before its own."""
    return max((each["op"] for each in rows.by_process[row["process"]] if each["op"] < row["op"]), default=-1)


def _last_position(rows: Rows) -> Row:
    """One that was seen at the end, and that a transaction gave."""
    given = {row["key"] for row in rows.of("position") if row["txn"] is not None and row["status"] == "ok"}
    return rows.pick([row for row in rows.of("position", "probe") if row["offset"] > 0 and row["key"] in given])[0]


def _is_below(row: Row, last: Row) -> bool:
    return bool(row["key"] == last["key"] and row["offset"] < last["offset"])
