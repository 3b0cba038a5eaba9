"""Good histories: a log with transactions, and clients that use it as they may, drawn from a seed.

Producers send to input partitions; copiers move input to output in transactions that commit, abort or end unknown, and a
bookkeeper has an effect for each of their records; a watcher looks at their positions; readers poll; partitions move between
members of a group; processes crash; the log is compacted. Nothing goes wrong in here.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pyarrow as pa

from onceflow.verify.checker import Function, per_record
from onceflow.verify.history import Recorder
from onceflow.verify.history.recorder import (
    Row,
    assign,
    crash,
    effect,
    gone,
    log_end,
    poll,
    position,
    send,
    stable_end,
    subscribe,
    window,
)

GROUP = "copy"
COPY = Function(per_record(lambda key, _, value: [(key.replace("in", "out"), value)]), ["in-*"], ["out-*"], GROUP)
"""What the copiers do."""
OPEN, COMMITTED, ABORTED = range(3)


@dataclass
class Transaction:
    """A transaction and what became of it; ``source`` is where its input ends."""

    number: int
    state: int = OPEN
    polls: list[Row] = field(default_factory=list)
    sends: list[Row] = field(default_factory=list)
    source: dict[str, int] = field(default_factory=dict)


@dataclass
class Entry:
    """What stands at one offset; a marker has no value."""

    value: int | None
    txn: Transaction | None = None
    dropped: bool = False


class Log:
    """One partition."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def append(self, value: int | None, txn: Transaction | None = None) -> int:
        self.entries.append(Entry(value, txn))
        return len(self.entries) - 1

    def stable_end(self) -> int:
        is_open = (offset for offset, entry in enumerate(self.entries) if entry.txn and entry.txn.state == OPEN)
        return next(is_open, len(self.entries))

    def read(self, start: int, most: int) -> list[tuple[int, int]]:
        """(offset, value) pairs as a read_committed consumer gets them."""
        found: list[tuple[int, int]] = []
        for offset in range(start, self.stable_end()):
            entry = self.entries[offset]
            aborted = entry.txn is not None and entry.txn.state == ABORTED
            if entry.value is not None and not aborted and not entry.dropped and len(found) < most:
                found.append((offset, entry.value))
        return found


class World:
    """Logs and clients; ``table`` is the history once ``run`` has been called."""

    def __init__(self, seed: int, partitions: int = 3, compaction: bool = True) -> None:
        self.random = random.Random(seed)
        self.inputs = [f"in-{number}" for number in range(partitions)]
        self.outputs = [f"out-{number}" for number in range(partitions)]
        self.logs = {key: Log() for key in (*self.inputs, *self.outputs)}
        self.history = Recorder()
        self.compaction = compaction
        self.values = 0
        self.transactions = 0
        self.applied: set[int] = set()
        self.copied = dict.fromkeys(self.inputs, 0)
        self.copiers: dict[str, Transaction | None] = {"copier-0": None, "copier-1": None}
        self.crashes = 0
        self.reader_positions = {f"reader-{number}": dict.fromkeys(self.logs, 0) for number in range(2)}
        self.member_positions = dict.fromkeys(self.outputs, 0)

    def run(self, steps: int) -> pa.Table:
        """Some steps, each of any client, and then the end: all is copied, resolved, and read from the beginning."""
        for name in ("member-0", "member-1"):
            self.history.add(name, subscribe())
        actions = [self.produce, self.begin, self.finish, self.read, self.read_as_member, self.rewind, self.compact]
        for step in range(steps):
            if step == steps // 2:
                self.look_at_effects()
            (action,) = self.random.choices(actions, (30, 15, 15, 15, 8, 1, 1))
            action()
            if step % 20 == 0:
                self.look_at_positions()
        while any(self.copiers.values()) or self.waiting():
            if self.waiting():
                self.begin()
            self.finish()
        self.end()
        return self.history.table()

    def produce(self) -> None:
        key = self.random.choice(self.inputs)
        sends = []
        (status,) = self.random.choices(("ok", "info", "fail"), (18, 1, 1))
        written = status == "ok" or (status == "info" and self.random.random() < 0.5)
        for _ in range(self.random.randint(1, 3)):
            self.values += 1
            offset = self.logs[key].append(self.values) if written else None
            known = status == "ok" and self.random.random() < 0.8
            sends.append(send(key, self.values, offset if known else None))
        self.history.add(f"producer-{key}-{self.random.randrange(2)}", *sends, status=status)

    def begin(self) -> None:
        """A copier that is idle takes input that no other has, and writes its output without committing yet."""
        idle = [name for name, txn in self.copiers.items() if txn is None]
        taken = {key for txn in self.copiers.values() if txn for key in txn.source}
        keys = [key for key in self.inputs if key not in taken]
        if not idle or not keys:
            return
        txn = Transaction(self.transactions)
        self.transactions += 1
        for key in self.random.sample(keys, self.random.randint(1, len(keys))):
            txn.source[key] = self.copied[key]
            # In case another copier had the partition last: it starts where the group has committed.
            txn.polls.append(assign(key, self.copied[key]))
            for offset, value in self.logs[key].read(self.copied[key], 4):
                txn.polls.append(poll(key, offset, value, GROUP))
                output = key.replace("in", "out")
                at = self.logs[output].append(value, txn)
                txn.sends.append(send(output, value, at if self.random.random() < 0.8 else None))
                txn.source[key] = offset + 1
        self.copiers[self.random.choice(idle)] = txn

    def waiting(self) -> bool:
        """Whether any input is not copied yet."""
        return any(self.logs[key].read(self.copied[key], 1) for key in self.inputs)

    def finish(self) -> None:
        busy = [(name, txn) for name, txn in self.copiers.items() if txn]
        if not busy:
            return
        name, txn = self.random.choice(busy)
        (status,) = self.random.choices(("ok", "fail", "info"), (14, 4, 2))
        committed = status == "ok" or (status == "info" and self.random.random() < 0.5)
        txn.state = COMMITTED if committed else ABORTED
        for key in {row["key"] for row in txn.sends}:
            self.logs[key].append(None)
        if committed:
            self.copied |= txn.source
        positions = [position(key, offset, GROUP) for key, offset in txn.source.items()]
        self.history.add(name, *txn.polls, *positions, status=status, txn=txn.number)
        for worker in range(2):  # the records of one transaction are sent by several processes
            keys = {row["key"] for row in txn.sends if int(row["key"][-1]) % 2 == worker}
            rows = [row for row in txn.sends if row["key"] in keys]
            self.history.add(f"{name}-worker-{worker}", *rows, status=status, txn=txn.number)
        self.history.add("bookkeeper", *[send("accounts", row["value"]) for row in txn.sends], status=status)
        self.applied |= {row["value"] for row in txn.sends if committed}
        del self.copiers[name]
        if status == "info":
            self.history.add(name, crash())
            self.crashes += 1
            name = f"copier-{self.crashes + 1}"
        self.copiers[name] = None

    def read(self) -> None:
        name = self.random.choice(list(self.reader_positions))
        positions = self.reader_positions[name]
        rows: list[Row] = []
        for key in self.random.sample(list(self.logs), 2):
            found = self.logs[key].read(positions[key], self.random.randint(1, 8))
            rows += [poll(key, offset, value) for offset, value in found]
            if found:
                positions[key] = found[-1][0] + 1
        self.history.add(name, *rows)

    def read_as_member(self) -> None:
        """Either member may have the partition this time; what was not committed to the group comes again."""
        key = self.random.choice(self.outputs)
        found = self.logs[key].read(self.member_positions[key], 6)
        self.history.add(f"member-{self.random.randrange(2)}", *[poll(key, *each) for each in found])
        if found and self.random.random() < 0.8:
            self.member_positions[key] = found[-1][0] + 1

    def rewind(self) -> None:
        name = self.random.choice(list(self.reader_positions))
        key = self.random.choice(list(self.logs))
        offset = self.random.randint(0, self.reader_positions[name][key])
        self.reader_positions[name][key] = offset
        self.history.add(name, assign(key, offset))

    def compact(self) -> None:
        """Drops records at random, of the input only what is copied already."""
        if not self.compaction:
            return
        key = self.random.choice(list(self.logs))
        end = min(self.copied.get(key, self.logs[key].stable_end()), self.logs[key].stable_end())
        start = self.random.randint(0, end)
        stop = self.random.randint(start, end)
        for entry in self.logs[key].entries[start:stop]:
            entry.dropped = entry.dropped or self.random.random() < 0.7
        self.history.add("broker", gone(key, start, stop))

    def end(self) -> None:
        rows: list[Row] = []
        for key, log in self.logs.items():
            rows += [assign(key, 0), window(key, 0, len(log.entries))]
            rows += [poll(key, *each) for each in log.read(0, len(log.entries))]
        self.history.add("final", *rows)
        self.look_at_effects()
        for key, log in self.logs.items():
            committed = [position(key, self.copied[key], GROUP)] if key in self.copied else []
            end = len(log.entries)
            self.history.add("probe", log_end(key, end), stable_end(key, end), *committed)

    def look_at_positions(self) -> None:
        self.history.add("watcher", *[position(key, offset, GROUP) for key, offset in self.copied.items()])

    def look_at_effects(self) -> None:
        found = [effect("accounts", value) for value in sorted(self.applied)]
        self.history.add("ledger", window("accounts", 0, len(found)), *found)
