"""A sink that is used for a second query looks at that one as at the first."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from onceflow import KafkaSink, committed_offsets

if TYPE_CHECKING:
    from tests.conftest import Workbench

FIRST = [("k", str(number)) for number in range(5)]
SECOND = [("k", str(number)) for number in range(5, 8)]


def test_where_a_second_query_begins_is_checked(bench: Workbench) -> None:
    source, target = bench.topic(), bench.topic()
    bench.fill(source, FIRST)
    named: dict[str, Any] = {"name": target, "bootstrap_servers": bench.broker.bootstrap_servers}
    directory = bench.checkpoint.parent
    with closing(KafkaSink(target, **named, on_mismatch="resume")) as sink:
        bench.run_query(source, sink, directory / "1")
        with pytest.raises(Exception, match=r"PROGRESS_CONFLICT.*does not start at the committed offsets"):
            bench.run_query(source, sink, directory / "2")
        bench.fill(source, SECOND)
        bench.run_query(source, sink, directory / "3", startingOffsets=committed_offsets(**named))
        bench.fill(source, FIRST)
        bench.run_query(source, sink, directory / "3")
    values = [(message.value() or b"").decode() for message in bench.read(target)]
    assert values == [value for _, value in FIRST + SECOND + FIRST]


def test_the_options_of_a_second_query_are_checked(bench: Workbench) -> None:
    unsafe: dict[str, Any] = {"kafka.isolation.level": "read_uncommitted"}
    source, target = bench.topic(), bench.topic()
    bench.fill(source, FIRST)
    with closing(KafkaSink(target, name=target, bootstrap_servers=bench.broker.bootstrap_servers)) as sink:
        bench.run_query(source, sink, bench.checkpoint)
        bench.fill(source, SECOND)
        with pytest.raises(Exception, match=r"UNSAFE_SESSION.*uncommitted records"):
            bench.run_query(source, sink, bench.checkpoint, **unsafe)
    assert len(bench.read(target)) == len(FIRST)
