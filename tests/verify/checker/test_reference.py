"""The checker finds in small random histories exactly what the definitions say, row by row."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from tests.verify.checker.reference import Found, Reference, random_history

from onceflow.verify.checker import check_history

HISTORIES, PARTS = 800, 4
BY_PLACE = {"inconsistent_offsets", "consumed_twice"}
BY_READ = {"phantom", "aborted_read"}


def found_by_the_checker(findings: list[dict[str, Any]], rows: list[dict[str, Any]]) -> Found:
    found: Found = defaultdict(set)
    for each in findings:
        name, shown = each["anomaly"], [rows[number] for number in each["rows"]]
        if name == "duplicated":
            found[name].add((each["key"], each["value"]))
        elif name in BY_PLACE:
            found[name].add((each["key"], each["offset"]))
        elif name in BY_READ:
            found[name].add((each["key"], each["offset"], each["value"]))
        elif name == "intermediate_read":
            found[name].add((shown[2]["op"], shown[0]["txn"]))
        else:
            found[name].add((each["rows"][0],))
    return found


@pytest.mark.parametrize("part", range(PARTS))
def test_the_checker_finds_what_the_definitions_say(part: int) -> None:
    shown = set[str]()
    for seed in range(part, HISTORIES, PARTS):
        verdict = check_history(random_history(seed).table())
        rows = verdict.history.to_pylist()
        reference, found = Reference(rows), found_by_the_checker(verdict.findings.to_pylist(), rows)
        expected = reference.found()
        assert {name: found[name] for name in expected} == expected, f"seed {seed}"
        assert bool(found["wr_cycle"]) == reference.has_circle(), f"seed {seed}"
        shown |= {name for name, some in expected.items() if some} | {"wr_cycle" for _ in found["wr_cycle"]}
    assert shown == {*expected, "wr_cycle"}, "each of them was there to be found"
