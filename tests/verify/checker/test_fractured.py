"""What was seen together is accused exactly where the definition says so, pair by pair."""

from __future__ import annotations

from random import Random
from typing import Any

from onceflow.verify.checker.evidence import Evidence
from onceflow.verify.checker.fractured import fractured
from onceflow.verify.history import Recorder
from onceflow.verify.history.columns import Columns
from onceflow.verify.history.recorder import poll, position

HISTORIES = 800
KEYS = "kj"
Row = dict[str, Any]


def random_history(seed: int) -> Recorder:
    """Transactions that give positions, and looks at what was given lately, of several processes; nothing need fit together."""
    random, history = Random(seed), Recorder()
    statuses: dict[int, str] = {}
    lately: dict[str, list[int]] = {key: [0] for key in KEYS}
    for step in range(1, random.randint(5, 12)):
        if random.random() < 0.45:
            looked = [position(key, random.choice(lately[key][-3:]), "g") for key in _keys(random)]
            history.add(random.choice("ppq"), *looked, status=random.choice(["ok"] * 5 + ["info"]))
            continue
        txn = step if random.random() < 0.8 else random.randint(1, step)
        status = statuses.setdefault(txn, random.choice(["ok"] * 6 + ["fail", "info"]))
        group = random.choice("ggggh")
        taken = [poll(random.choice(KEYS), random.randrange(step), 1, group)] if random.random() < 0.2 else []
        given = {key: max(step + random.choice([-1, 0, 0, 0]), 0) for key in KEYS}
        history.add(
            random.choice("aaab"),
            *taken,
            *[position(key, given[key], group) for key in _keys(random)],
            status=status,
            txn=txn,
        )
        for key in KEYS:
            lately[key].append(given[key])
    return history


def _keys(random: Random) -> list[str]:
    return random.choices([["k", "j"], ["k"], ["j", "k", "j"]], [7, 2, 1])[0]


class Definition:
    """The same in the words of the definition, and slowly."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.all = [number for number, row in enumerate(rows) if row["kind"] == "position"]
        self.given = [number for number in self.all if rows[number]["txn"] is not None and self._may_be(number)]
        self.seen = [number for number in self.all if rows[number]["txn"] is None and rows[number]["status"] == "ok"]

    def accused(self) -> set[int]:
        return {older for shown in self.seen for older in self._seen_with(shown) if self._is_torn(shown, older)}

    def _is_torn(self, shown: int, older: int) -> bool:
        giver = self._giver(shown)
        if giver is None or not self._came(giver, shown):
            return False
        gave = [
            number for number in self.given if self._txn(number) == self._txn(giver) and self._same_lane(number, older)
        ]
        givers = [number for number in self.given if self._same_spot(number, older)]
        return bool(gave and givers) and all(
            self.rows[each]["status"] == "ok" and self._op_began_after(gave[-1], self._txn(each)) for each in givers
        )

    def _giver(self, shown: int) -> int | None:
        """Nobody had spoken of it before, and whoever else gave it came behind."""
        spoke = [number for number in sorted([*self.given, *self.seen]) if self._same_spot(number, shown)]
        first = spoke[0]
        others = [number for number in spoke if number in self.given and self._txn(number) != self._txn(first)]
        sure = all(
            self.rows[number]["status"] == self.rows[first]["status"] == "ok"
            and self._op_began_after(self._end_of(number), self._txn(first))
            for number in others
        )
        return first if first in self.given and sure else None

    def _end_of(self, number: int) -> int:
        """The last row of its transaction."""
        return max(each for each, row in enumerate(self.rows) if row["txn"] == self._txn(number))

    def _came(self, giver: int, shown: int) -> bool:
        rows = self.rows
        below = any(
            row["kind"] == "poll"
            and row["txn"] == self._txn(giver)
            and (row["key"], row["group"]) == (rows[giver]["key"], rows[giver]["group"])
            and row["offset"] < rows[giver]["offset"]
            for row in rows
        )
        certain = [
            number
            for number in sorted([*self.given, *self.seen])
            if self._same_lane(number, giver) and rows[number]["status"] == "ok"
        ]
        first = certain[0]
        elsewhere = first < giver and self._last(shown) >= 0 and self._op_began_after(shown, self._txn(first), first)
        return below or elsewhere

    def _op_began_after(self, number: int, txn: int | None, row: int | None = None) -> bool:
        """Whether the operation before that of this row, of its process, had ended behind all of this unit."""
        ended = max(
            each
            for each, given in enumerate(self.rows)
            if (given["txn"] == txn if txn is not None else given["op"] == self.rows[row or 0]["op"])
        )
        return self._last(number) >= ended

    def _last(self, number: int) -> int:
        """The last row of the operation before that of this row, of its process; -1 for none."""
        mine = self.rows[number]
        before = [
            each
            for each, given in enumerate(self.rows)
            if given["process"] == mine["process"] and given["op"] < mine["op"]
        ]
        return max(before, default=-1)

    def _seen_with(self, shown: int) -> list[int]:
        """What was seen in the same operation of the same group, which asked for no key twice."""
        mine = self.rows[shown]
        together = [
            number
            for number in self.seen
            if (self.rows[number]["op"], self.rows[number]["group"]) == (mine["op"], mine["group"])
        ]
        keys = [self.rows[number]["key"] for number in together]
        return [number for number in together if number != shown] if len(set(keys)) == len(keys) else []

    def _may_be(self, number: int) -> bool:
        return bool(self.rows[number]["status"] != "fail")

    def _txn(self, number: int) -> int | None:
        txn: int | None = self.rows[number]["txn"]
        return txn

    def _same_lane(self, one: int, other: int) -> bool:
        return all(self.rows[one][name] == self.rows[other][name] for name in ("key", "group"))

    def _same_spot(self, one: int, other: int) -> bool:
        return self._same_lane(one, other) and bool(self.rows[one]["offset"] == self.rows[other]["offset"])


def test_what_is_accused_is_what_the_definition_accuses() -> None:
    found = 0
    for seed in range(HISTORIES):
        table = random_history(seed).table()
        accused, _, _ = fractured(Evidence(Columns.of(table)))
        assert set(accused.tolist()) == Definition(table.to_pylist()).accused(), f"seed {seed}"
        found += len(accused)
    assert found > HISTORIES // 100, "there was something to find"
