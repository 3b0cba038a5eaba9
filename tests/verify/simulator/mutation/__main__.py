"""``python -m tests.verify.simulator.mutation``: every mutant of the commit protocol and of what it is written with, and who
kills it.

Verdicts are kept in ``--state`` as they come, so a run that was interrupted goes on where it stopped. A verdict counts as long as
neither the mutated file nor the suite has changed; with ``--trust-kills`` a kill counts also after the suite has changed. With
``--record`` the figures of each file whose mutants all were judged go into ``judged.toml``, which the documentation is held
against.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Annotated

import typer
from tests.verify.simulator.mutation.judged import Figures, recorded, write
from tests.verify.simulator.mutation.judges import JUDGES, may_judge
from tests.verify.simulator.mutation.mutants import ROOT, UNCHANGED, Mutant, mutants, unchanged
from tests.verify.simulator.mutation.running import Verdict, digest, judge_all, suite
from tests.verify.simulator.mutation.targets import TARGETS

EQUIVALENTS = Path(__file__).with_name("equivalents.toml")
STATE = ROOT / "build" / "mutants.jsonl"

State = Annotated[Path, typer.Option(help="Where verdicts are kept.")]
Sample = Annotated[int, typer.Option(min=0, help="So many mutants, chosen by the seed; 0: all.")]
Seed = Annotated[int, typer.Option(help="Chooses the sample.")]
Processes = Annotated[int, typer.Option(min=1, help="How many mutants are judged at the same time.")]
Judges = Annotated[list[str] | None, typer.Option("--judge", help="Who judges: all where none is named.")]
File = Annotated[str, typer.Option(help="Only mutants whose name contains this.")]
Least = Annotated[
    float, typer.Option(help="Exit status 1 below this part of the killed among those that are no equivalents.")
]
Record = Annotated[bool, typer.Option("--record", help="Keep the figures of files that were judged whole.")]
TrustKills = Annotated[bool, typer.Option(help="A kill counts after the suite has changed.")]


def main(
    state: State = STATE,
    sample: Sample = 0,
    seed: Seed = 1,
    processes: Processes = 1,
    judge: Judges = None,
    only: File = "",
    least: Least = 0.95,
    trust_kills: TrustKills = False,
    *,
    record: Record = False,
) -> None:
    """Judges mutants and prints the table; exit status 1 when too few are killed, or an equivalent is none."""
    every = [mutant for target in TARGETS for mutant in mutants(target)]
    equivalent = equivalents(every)
    judges = judge or list(JUDGES)
    chosen = [m for m in every if only in m.key and any(may_judge(name, m.target) for name in judges)]
    if sample:
        differing = [mutant for mutant in chosen if mutant.key not in equivalent]
        sampled = {mutant.key for mutant in Random(seed).sample(differing, min(sample, len(differing)))}
        chosen = [mutant for mutant in differing if mutant.key in sampled]
    verdicts = Verdicts(state, trust_kills=trust_kills)
    missing = [mutant for mutant in chosen if verdicts.of(mutant) is None]
    print(f"{len(chosen)} mutants, {len(missing)} to be judged", flush=True)

    def heard(mutant: Mutant, name: str, saw: str) -> None:
        if mutant.change == UNCHANGED and name:
            sys.exit(f"the judges kill what is not changed: {name}, {saw}")
        verdicts.add(mutant, name, saw)
        if not name and mutant.key not in equivalent and mutant.change != UNCHANGED:
            print(f"lives: line {mutant.line}, {mutant.key}", flush=True)

    if missing:
        judge_all([*controls(missing), *missing], judges, processes, heard)
    if record:
        write({**recorded(), **figures(every, verdicts, equivalent)})
    sys.exit(not table(chosen, verdicts, equivalent, least))


def controls(missing: Sequence[Mutant]) -> list[Mutant]:
    """Sources without a change, in each of the ways in which these mutants are judged. A process with Spark has its own."""
    judged = {mutant.target.judges: mutant.target for mutant in missing if not mutant.target.with_spark}
    return [unchanged(target, in_place=in_place) for target in judged.values() for in_place in (False, True)]


class Verdicts:
    """What was judged before, and is."""

    def __init__(self, path: Path, *, trust_kills: bool) -> None:
        self._path = path
        self._suite = suite()
        self._sources = {target.file: digest([ROOT / target.path]) for target in TARGETS}
        self._known: dict[str, Verdict] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_text().splitlines() if path.exists() else ():
            verdict = Verdict(**json.loads(line))
            if verdict.suite == self._suite or (trust_kills and verdict.killed):
                self._known[verdict.key] = verdict

    def of(self, mutant: Mutant) -> Verdict | None:
        """The verdict on a mutant, unless its file has changed since."""
        verdict = self._known.get(mutant.key)
        return verdict if verdict and verdict.source == self._sources[mutant.target.file] else None

    def add(self, mutant: Mutant, judge: str, saw: str) -> None:
        """Keeps a verdict."""
        verdict = Verdict(mutant.key, self._sources[mutant.target.file], self._suite, judge, saw)
        self._known[mutant.key] = verdict
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(verdict)) + "\n")


def equivalents(every: Sequence[Mutant]) -> dict[str, str]:
    """Key to reason, of mutants that do what production does. Each must exist."""
    listed = {
        change: entry["reason"]
        for entry in tomllib.loads(EQUIVALENTS.read_text()).get("equivalent", [])
        for change in entry["changes"]
    }
    unknown = set(listed) - {mutant.key for mutant in every}
    if unknown:
        sys.exit("no such mutants, correct equivalents.toml:\n" + "\n".join(sorted(unknown)))
    return listed


def figures(every: Sequence[Mutant], verdicts: Verdicts, equivalent: dict[str, str]) -> dict[str, Figures]:
    """Of each file of which every mutant has a verdict."""
    of_file: dict[str, list[Mutant]] = {}
    for mutant in every:
        of_file.setdefault(mutant.target.file, []).append(mutant)
    found: dict[str, Figures] = {}
    for file, all_of_it in of_file.items():
        judged = [(mutant, verdict) for mutant in all_of_it if (verdict := verdicts.of(mutant)) is not None]
        if len(judged) == len(all_of_it):
            killed = sum(bool(verdict.killed) for _, verdict in judged)
            same = sum(mutant.key in equivalent for mutant in all_of_it)
            found[file] = Figures(judged[0][1].source, len(all_of_it), same, killed)
    return found


def table(chosen: Sequence[Mutant], verdicts: Verdicts, equivalent: dict[str, str], least: float) -> bool:
    """Prints figures by file and judge, and whoever lives; whether that is good enough."""
    rows: dict[str, Counter[str]] = {}
    wrong = []
    for mutant in chosen:
        verdict = verdicts.of(mutant)
        assert verdict is not None
        if mutant.key in equivalent and verdict.killed:
            wrong.append(f"is listed as an equivalent, and killed by {verdict.judge} ({verdict.saw}): {mutant.key}")
        kind = "equivalent" if mutant.key in equivalent else verdict.judge or "lives"
        rows.setdefault(mutant.target.file, Counter())[kind] += 1
    columns = [*JUDGES, "limits", "lives", "equivalent"]
    print("| file | mutants |", " | ".join(columns), "|")
    print("|---|---|" + "---|" * len(columns))
    rows["all"] = sum(rows.values(), Counter())
    for file, row in rows.items():
        print(f"| {file} | {row.total()} |", " | ".join(str(row[column]) for column in columns), "|")
    print("\n".join(wrong))
    total = rows["all"]
    real = total.total() - total["equivalent"]
    rate = 1 - total["lives"] / real if real else 1.0
    print(f"{real - total['lives']} of {real} mutants that differ from production are killed: {rate:.2%}")
    return rate >= least and not wrong


if __name__ == "__main__":
    typer.run(main)
