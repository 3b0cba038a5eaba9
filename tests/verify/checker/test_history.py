from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.verify.checker.world import World

from onceflow.errors import HistoryInvalid
from onceflow.verify.history import (
    SCHEMA,
    VERSION,
    Kind,
    Recorder,
    Status,
    read_history,
    validate,
    validation,
    write_history,
)
from onceflow.verify.history.recorder import assign, crash, poll, position, send, window

DOCUMENTED = (Path(__file__).parents[3] / "docs" / "history-format.md").read_text()


def rows_table(*rows: dict[str, Any], version: str | None = str(VERSION), **columns: Any) -> pa.Table:
    """A table of rows that are good but for what is said."""
    good = {"op": 0, "process": "p", "kind": "send", "status": "ok", "key": "k", "value": 1}
    full = [{**good, "op": number, **row} for number, row in enumerate(rows)]
    arrays = {name: pa.array([row.get(name) for row in full]) for name in {name for row in full for name in row}}
    metadata = {"onceflow.history": version} if version else None
    return pa.table({**arrays, **columns}).replace_schema_metadata(metadata)


def mistakes(table: pa.Table) -> tuple[str, ...]:
    with pytest.raises(HistoryInvalid) as caught:
        validate(table)
    return tuple(caught.value.fields["mistakes"])


@pytest.mark.parametrize("ending", ["parquet", "arrow", "jsonl"])
def test_a_history_comes_back_from_a_file_as_it_was(ending: str, tmp_path: Path) -> None:
    table = World(3).run(300)
    write_history(table, tmp_path / f"history.{ending}")
    back = read_history(tmp_path / f"history.{ending}")
    assert back.to_pylist() == table.to_pylist()
    assert back.schema.metadata == SCHEMA.metadata


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


@pytest.mark.parametrize("ending", ["parquet", "arrow", "jsonl"])
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    values=st.lists(TEXT, max_size=4) | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    names=st.tuples(TEXT, TEXT),
)
@example(values=["a\u2028b", "a\x85b", "a\rb", "a\nb", "\x1c"], names=("p\u2028", "k\x85"))
def test_any_text_and_any_number_comes_back(
    ending: str, tmp_path: Path, values: list[Any], names: tuple[str, str]
) -> None:
    """Also what some programs end a line at, such as U+2028 and U+0085."""
    recorder, (process, key) = Recorder(), names
    for offset, value in enumerate(values):
        recorder.add(process, send(key, value, offset))
    recorder.add("reader", assign(key, 0), window(key, 0, len(values)))
    write_history(recorder.table(), tmp_path / f"any.{ending}")
    assert read_history(tmp_path / f"any.{ending}").to_pylist() == recorder.table().to_pylist()


def test_values_may_be_text() -> None:
    recorder = Recorder()
    recorder.add("p", send("k", "order-1", 0))
    recorder.add("q", poll("k", 0, "order-1"))
    assert recorder.table()["value"].to_pylist() == ["order-1", "order-1"]


def test_an_empty_history_is_a_history(tmp_path: Path) -> None:
    write_history(Recorder().table(), tmp_path / "empty.jsonl")
    assert len(read_history(tmp_path / "empty.jsonl")) == 0


def test_columns_that_are_wrong_are_all_named() -> None:
    table = pa.table({"op": ["a"], "kind": ["send"], "status": ["ok"], "txn": [0.5], "colour": ["red"]})
    assert mistakes(table) == (
        "the format version is missing; this onceflow reads 1",
        "column op is of type string, not int64",
        "column process is missing",
        "column txn is of type double, not int64",
        "unknown columns: colour",
        "send without key in row 0",
        "send without value in row 0",
    )
    assert mistakes(rows_table({}, version="2")) == ("format version 2; this onceflow reads 1",)


def test_words_and_numbers_that_are_wrong_are_all_named() -> None:
    table = rows_table({"kind": "sned"}, {"status": "done"}, {"process": None}, {"offset": -1}, {"offset": 2**43})
    found = mistakes(table)
    assert "column process is empty in row 2" in found
    assert any(each.startswith("unknown kind 'sned' in row 0; known are send, poll,") for each in found)
    assert "unknown status 'done' in row 1; known are ok, info, fail" in found
    assert "offset is negative in row 3" in found
    assert f"offset is above {2**43 - 1} in row 4" in found
    assert len(found) == 5


def test_what_a_kind_must_have_is_asked_for() -> None:
    rows = [{"kind": kind.name.lower(), "key": None, "value": None} for kind in Kind]
    found = mistakes(rows_table(*rows))
    assert "send without key in row 0" in found
    assert "poll without value in row 1" in found
    assert "window without until in row 2" in found
    assert len(found) == 2 + 3 + 3 + 1 + 2 + 2 + 2 + 2 + 3
    assert mistakes(rows_table({"kind": "gone", "offset": 3, "until": 2})) == ("until is below offset in row 0",)


def test_a_word_that_is_wrong_hides_no_other_mistake() -> None:
    rows: list[dict[str, Any]] = [{"kind": "sned", "txn": 5, "offset": -1}, {"value": None, "txn": 5, "status": "fail"}]
    found = mistakes(rows_table(*rows))
    assert [each.split(" in row")[0].split(";")[0] for each in found] == [
        "unknown kind 'sned'",
        "offset is negative",
        "send without value",
        "status differs from that of the first row of the same txn",
    ]


def test_one_transaction_has_one_fate_and_one_operation_one_process() -> None:
    rows: list[dict[str, Any]] = [{"txn": 5}, {"txn": 5, "status": "fail"}, {"op": 9}, {"op": 9, "process": "q"}]
    assert mistakes(rows_table(*rows)) == (
        "process differs from that of the first row of the same op in row 3",
        "status differs from that of the first row of the same txn in row 1",
    )


def test_many_rows_with_one_mistake_are_counted() -> None:
    (found,) = mistakes(rows_table(*[{"value": None}] * 8))
    assert found == "send without value in rows 0, 1, 2, 3, 4 and 3 more"


def test_lines_that_are_wrong_are_all_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"onceflow_history": 1}\n{"op": 0,\n[]\n')
    with pytest.raises(
        HistoryInvalid, match=r"2 mistakes(.|\n)*row 0 \(line 2\) is not JSON(.|\n)*row 1 \(line 3\) is not an obj"
    ):
        read_history(path)
    path.write_text('[]\n{"op": 0,\n')
    with pytest.raises(HistoryInvalid, match=r"row 0 \(line 1\) is not an object(.|\n)*row 1 \(line 2\) is not JSON"):
        read_history(path)
    path.write_text('{"onceflow_history": 1}\n{"op": 0, "value": 1}\n{"op": "a", "value": "b"}\n')
    with pytest.raises(HistoryInvalid, match=r"op mixes types; row 1(.|\n)*value mixes types; row 1 differ"):
        read_history(path)


def test_what_is_wrong_with_a_column_hides_nothing_of_the_others(tmp_path: Path) -> None:
    """And a row has one number, whoever names it."""
    path = tmp_path / "bad.jsonl"
    path.write_text(
        '{"onceflow_history": 2}\n'
        '{"op": 0, "process": "p", "kind": "send", "status": "ok", "key": "k", "value": 1}\n'
        '{"op": 1, "process": "p", "kind": "sned", "status": "ok", "key": "k", "value": "b"}\n'
        '{"op": 2, "process": "p", "kind": "poll", "status": "ok", "key": "k", "value": 3}\n'
    )
    with pytest.raises(HistoryInvalid) as caught:
        read_history(path)
    found = caught.value.fields["mistakes"]
    assert [each.split(";")[0] for each in found] == [
        "format version 2", "column value mixes types", "unknown kind 'sned' in row 1", "poll without offset in row 2",
    ]  # fmt: skip
    assert found[1] == "column value mixes types; row 1 differ from the first"


ROW = '{"op": 0, "process": "p", "kind": "send", "status": "ok", "key": "k", "value": %s}\n'


@pytest.mark.parametrize(
    ("lines", "mistake"),
    [
        (ROW % 2**63, "column value has numbers beyond 64 bits in row 0"),
        (ROW % 1 + ROW % -(10**30), "column value has numbers beyond 64 bits in row 1"),
        (ROW % r'"\ud800"', "column value has text that is not Unicode (a lone surrogate) in row 0"),
        (ROW.replace("value", r"\udfff") % 1, r"unknown columns: \udfff"),
        (ROW.replace("value", r"\udfff") % 2**63, r"column \udfff has numbers beyond 64 bits in row 0"),
        (ROW % ("[" * 100_000), "row 0 (line 2) is not a row: it is nested too deeply"),
        (ROW % ("[" * 500 + "]" * 500), "column value is of type list<"),
        (ROW % r'{"\ud800": 1}', "column value cannot be read: "),
        (ROW % 1 + "\n", "row 1 (line 3) is not JSON: "),
        (ROW.replace("{", '{"op": 7, ') % 1, "row 0 (line 2) has more than one op: leave one"),
        (ROW.replace("{", '{"op" \t : 7, ') % '"a:b"', "row 0 (line 2) has more than one op: leave one"),
        (ROW % 1 + ROW % '"a:b", "value": "c", "op": 0', "row 1 (line 3) has more than one op, value: leave one"),
    ],
    ids=[
        "number",
        "negative",
        "text",
        "name",
        "name and number",
        "deep",
        "list",
        "object",
        "empty line",
        "a name twice",
        "a name twice before blanks",
        "two names twice",
    ],
)
def test_lines_that_no_column_can_hold_are_named(lines: str, mistake: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"onceflow_history": 1}\n' + lines)
    with pytest.raises(HistoryInvalid) as caught:
        read_history(path)
    assert any(each.startswith(mistake) for each in caught.value.fields["mistakes"]), caught.value.fields["mistakes"]


def test_a_byte_order_mark_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"onceflow_history": 1}\n' + ROW % 1, encoding="utf-8-sig")
    with pytest.raises(HistoryInvalid, match=r"row 0 \(line 1\) is not JSON: Unexpected UTF-8 BOM"):
        read_history(path)


def test_a_version_that_no_file_can_hold_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(r'{"onceflow_history": "\ud800"}')
    with pytest.raises(HistoryInvalid) as caught:
        read_history(path)
    assert caught.value.fields["mistakes"] == (r"format version \ud800; this onceflow reads 1",)


def test_everything_that_is_wrong_with_a_recording_is_named() -> None:
    recorder = Recorder()
    recorder.add("p", send("k", 1))
    recorder.add("p", send("k", "a"), send("k", 2**63), poll("k", -1, "\ud800"))
    with pytest.raises(HistoryInvalid) as caught:
        recorder.table()
    assert caught.value.fields["mistakes"] == (
        "column value mixes types; rows 1, 3 differ from the first; has numbers beyond 64 bits in row 2; "
        "has text that is not Unicode (a lone surrogate) in row 3",
        "offset is negative in row 3",
    )


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_columns_of_a_file_that_hold_no_text_are_refused(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"bad.{ending}"
    table = rows_table({"value": "a"}, {"value": "b"})
    at = table.column_names.index("value")
    broken = table.set_column(at, "value", pa.array([b"a", b"\xff"]).view(pa.string()))
    (pq.write_table if ending == "parquet" else feather.write_feather)(broken, path)
    with pytest.raises(HistoryInvalid, match=f"it is no {ending} file: .*Invalid UTF8"):
        read_history(path)


def test_words_without_a_number_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.arrow"
    table = rows_table({}, {})
    kinds = pa.DictionaryArray.from_arrays(pa.array([0, 99], pa.int32()), pa.array(["send"]), safe=False)
    feather.write_feather(table.set_column(table.column_names.index("kind"), "kind", kinds), path)
    with pytest.raises(HistoryInvalid, match=r"it is no arrow file: .*out of bounds: 99"):
        read_history(path)


@pytest.mark.parametrize("name", ["history.csv", "history.parquet", "history.arrow"])
def test_a_file_that_is_no_history_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("nothing")
    with pytest.raises(HistoryInvalid):
        read_history(tmp_path / name)


def test_colons_in_names_and_values_are_no_repetition(tmp_path: Path) -> None:
    path = tmp_path / "good.jsonl"
    path.write_text('{"onceflow_history": 1}\n' + ROW % '"a:b: \\"c\\": d"')
    assert read_history(path)["value"].to_pylist() == ['a:b: "c": d']


@pytest.mark.parametrize("ending", ["parquet", "arrow", "jsonl"])
def test_what_is_no_file_is_not_waited_for(ending: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"pipe.{ending}")
    writer = os.open(tmp_path / f"pipe.{ending}", os.O_RDWR | os.O_NONBLOCK)  # so that who reads it all the same fails
    os.write(writer, b"nothing")
    with ending_soon(writer), pytest.raises(HistoryInvalid, match="it is no file but a FIFO"):
        read_history(tmp_path / f"pipe.{ending}")
    (tmp_path / f"directory.{ending}").mkdir()
    with pytest.raises(HistoryInvalid, match="directory"):
        read_history(tmp_path / f"directory.{ending}")


@contextmanager
def ending_soon(descriptor: int) -> Iterator[None]:
    """Who reads from it meets its end."""
    timer = Timer(5, os.close, [descriptor])
    timer.start()
    try:
        yield
    finally:
        if timer.is_alive():
            timer.cancel()
            os.close(descriptor)


def test_every_column_kind_and_status_is_documented() -> None:
    for word in (*SCHEMA.names, *(kind.name.lower() for kind in Kind), *(status.name.lower() for status in Status)):
        assert f"| `{word}` |" in DOCUMENTED, word


def test_the_documented_example_is_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code is run, and its file is the one shown."""
    monkeypatch.chdir(tmp_path)
    code, shown = DOCUMENTED.split("```python\n")[1].split("```", 1)
    exec(compile(code, "docs/history-format.md", "exec"), {})
    assert (tmp_path / "run.jsonl").read_text() == shown.split("```\n")[1]


def test_more_pairs_of_key_and_group_than_have_a_number_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would not fit into 64 bits with an offset, and one pair be taken for another one."""
    monkeypatch.setattr(validation, "MAX_PAIRS", 8)

    def pairs(count: int) -> pa.Table:
        recorder = Recorder()
        recorder.add("reader", crash())  # without a key
        recorder.add("writer", *[send(f"k{n}", n) for n in range(3)])  # pairs of key and no group, which nobody counts
        recorder.add("probe", *[position(f"k{n % 3}", 0, f"g{n // 3}") for n in range(count)])
        return recorder.table()

    assert len(validate(pairs(8))) == 12
    assert len(validate(validate(pairs(8)).slice(0, 5))) == 5  # with the names of all
    with pytest.raises(HistoryInvalid, match="more than 8 different pairs of key and group"):
        pairs(9)


def test_a_name_that_a_dictionary_has_twice_is_one_name() -> None:
    kinds = pa.DictionaryArray.from_arrays(pa.array([0, 2], pa.int32()), pa.array(["send", "poll", "poll"]))
    assert mistakes(rows_table({}, {}, kind=kinds)) == ("poll without offset in row 1",)


def test_a_null_in_a_dictionary_is_none() -> None:
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["k", None]))
    assert mistakes(rows_table({}, {}, key=keys)) == ("send without key in row 1",)
