"""Values that fit any schema, samples of the user's own, and the identities that every record gets."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from onceflow.config import load
from onceflow.errors import ConfigurationError
from onceflow.events import identity_of
from onceflow.verify.recording.messages import event_id
from onceflow.verify.workload import Inputs, Record, builtin_plan, inputs_for, read_sample
from onceflow.verify.workload.ddl import Field, Type, parse_ddl
from onceflow.verify.workload.values import Values

EVERYTHING = """
a BIGINT NOT NULL, `b c` STRING COMMENT 'a, b', d: DECIMAL(8, 2), e ARRAY<STRUCT<f: INT, g: MAP<STRING, DOUBLE>>>,
h TIMESTAMP, i DATE, j BOOLEAN, k STRUCT<l: BINARY NOT NULL, m: VARCHAR(1)>, n TIMESTAMP_NTZ, o TINYINT, p INTERVAL DAY TO SECOND,
q STRUCT<>, r NUMERIC
"""


def rows(schema: str, count: int = 200, seed: int = 1) -> list[dict[str, object]]:
    values = Values(parse_ddl(schema, "a test"), random.Random(seed))
    return [values.row() for _ in range(count)]


def test_a_schema_is_read_as_it_is_written() -> None:
    a, b, d, e, *_ = parse_ddl(EVERYTHING, "a test")
    assert a == Field("a", Type("bigint"), nullable=False)
    assert b == Field("b c", Type("string"))
    assert d.type == Type("decimal", (8, 2))
    inner = Type(
        "struct", fields=(Field("f", Type("int")), Field("g", Type("map", elements=(Type("string"), Type("double")))))
    )
    assert e.type == Type("array", elements=(inner,))


@pytest.mark.parametrize(
    "schema", ["", "a", "a INT b", "a ARRAY<INT", "a DECIMAL(x)", "a INT,", "a STRUCT<b INT c INT>"]
)
def test_a_schema_that_cannot_be_read_is_named(schema: str) -> None:
    with pytest.raises(ConfigurationError, match="the source") as caught:
        parse_ddl(schema, "the source")
    assert repr(schema) in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("a VARCHAR", "numbers in parentheses: varchar takes 1, and has 0"),
        ("a CHARACTER(1, 2)", "numbers in parentheses: char takes 1, and has 2"),
        ("a DECIMAL(1, 2, 3)", "numbers in parentheses: decimal takes 0 to 2, and has 3"),
        ("a DEC(2, 5)", "decimal has 2 digits, of which 5 cannot stand behind the point"),
        ("a ARRAY", "types between < and >: array takes 1, and has 0"),
        ("a STRUCT<b: MAP<STRING>>", "types between < and >: map takes 2, and has 1"),
        ("a INT<STRING>", "types between < and >: int takes 0, and has 1"),
    ],
)
def test_a_type_that_no_values_can_be_made_for_is_a_mistake_of_the_schema(schema: str, told: str) -> None:
    """And not one that ends the writer at its first record."""
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        parse_ddl(schema, "the source")


def test_values_repeat_and_are_sometimes_null() -> None:
    made = rows(EVERYTHING)
    assert made == rows(EVERYTHING)
    assert made != rows(EVERYTHING, seed=2)
    assert all(row["a"] is not None for row in made)
    assert 0 < sum(row["b c"] is None for row in made) < 40
    words = [row["b c"] for row in made if row["b c"] is not None]
    assert len(set(words)) < len(words) / 3
    assert {type(row["k"]["m"]) for row in made if isinstance(row["k"], dict)} == {str, type(None)}


def test_times_go_on_with_some_disorder() -> None:
    times = [str(row["h"]) for row in rows("h TIMESTAMP NOT NULL", 500)]
    assert times != sorted(times)
    assert times[0] < times[100] < times[200] < times[400]


def test_sums_of_fractions_do_not_depend_on_the_order() -> None:
    values = [row["d"] for row in rows("d DOUBLE NOT NULL")]
    assert all(isinstance(value, float) and (value * 4).is_integer() for value in values)


def plan_of(tmp_path: Path, text: str) -> list[Inputs]:
    (tmp_path / "plan.toml").write_text(f'name = "p"\n{text}\n[[sink]]\nfrom = "s"\ntopic = "out"\nvalue = "value"\n')
    plan = load(tmp_path / "plan.toml", {}).plan
    return inputs_for(plan, {source.name: source.topics for source in plan.source}, 7)


def records(inputs: Inputs, count: int) -> Iterator[tuple[str, Record, str]]:
    return islice(iter(inputs.next_of, None), count)


def test_every_record_has_an_identity_of_its_own(tmp_path: Path) -> None:
    made = plan_of(tmp_path, '[[source]]\nname = "s"\ntopics = ["t", "u"]\nformat = "raw"')
    assert [inputs.topic for inputs in made] == ["t", "u"]
    seen = [each for inputs in made for each in records(inputs, 100)]
    assert len({name for _, _, name in seen}) == 200
    for topic, record, name in seen:
        identity = identity_of(record.headers)
        assert identity is not None
        assert identity.source == f"/onceflow/verify/7/{topic}"
        assert event_id(record.headers) == name
    assert len({record.key for _, record, _ in seen}) <= 50
    assert isinstance(seen[0][1].value, bytes)


def test_a_sample_is_repeated(tmp_path: Path) -> None:
    path = tmp_path / "sample.jsonl"
    path.write_text('{"a": 1}\n\n{"key": "k", "value": {"a":2}, "headers": {"h": "x"}}\n"text"\n{"value": null}\n')
    sample = read_sample(path)
    assert sample == [
        Record(None, b'{"a": 1}'),
        Record(b"k", b'{"a":2}', (("h", b"x"),)),
        Record(None, b"text"),
        Record(None, None),
    ]
    plan = load(builtin_plan(), {}).plan
    (first, _) = inputs_for(plan, {"payments": ("one", "two")}, 1, {"one": sample})
    values = [record.value for _, record, _ in records(first, 9)]
    assert values == [each.value for each in (sample * 3)[:9]]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085"], ids=["2028", "2029", "85"])
def test_only_a_line_end_ends_a_line(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "sample.jsonl"
    path.write_text(f'{{"a": "x{mark}y"}}\r\n{{"b": 1}}\n', encoding="utf-8")
    assert [record.value for record in read_sample(path)] == [f'{{"a": "x{mark}y"}}'.encode(), b'{"b": 1}']


def test_numbers_of_a_sample_keep_their_digits(tmp_path: Path) -> None:
    path = tmp_path / "sample.jsonl"
    path.write_text(
        '{"value": {"a": 1.10, "b": [1e400, -0, 12345678901234567890123]}}\n{"value": 1.10, "key": 7}\n1.10\n{"value": "1.10"}\n'
        '{"value": {"e": "\\ud800", "t": true, "n": null}}\n'
    )
    assert [(record.key, record.value) for record in read_sample(path)] == [
        (None, b'{"a":1.10,"b":[1e400,-0,12345678901234567890123]}'),
        (b"7", b"1.10"),
        (None, b"1.10"),
        (None, b"1.10"),
        (None, b'{"e":"\\ud800","t":true,"n":null}'),
    ]


def test_a_sample_with_mistakes_names_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "sample.jsonl"
    path.write_text('{"a": 1\n{"value": 1, "headers": 5}\n')
    with pytest.raises(ConfigurationError, match=r"line 1(.|\n)*line 2: headers must be an object"):
        read_sample(path)
    path.write_text(f'{{"value": {"[" * 5000}1{"]" * 5000}}}\n')
    with pytest.raises(ConfigurationError, match="line 1: it is nested too deeply"):
        read_sample(path)
    path.write_text('{"value": 1, "headers": {"\\ud800": "x"}}\n')
    with pytest.raises(ConfigurationError, match=r"line 1: '\\ud800' can be no header's name"):
        read_sample(path)
    path.write_text("\n")
    with pytest.raises(ConfigurationError, match="holds no record"):
        read_sample(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_sample(tmp_path / "missing")


def test_the_built_in_plan_is_a_plan() -> None:
    plan = load(builtin_plan(), {}).plan
    (inputs, _) = inputs_for(plan, {"payments": plan.source[0].topics}, 1)
    _, record, _ = inputs.next_of()
    assert set(json.loads(record.value or b"")) == {"account", "amount"}
