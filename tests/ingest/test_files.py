"""Every format, whole and in pieces: each row once, named by its place, wherever a run ends."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.ingest.support import DAY, Row, commit, files, ids, look, take, values

from onceflow.errors import ConfigurationError, InputError, SourceUnavailable, SourceUnfinished
from onceflow.ingest import parquet_rows
from onceflow.ingest.file_position import FilePosition
from onceflow.ingest.files import Format


def day() -> list[dict[str, str]]:
    with DAY.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def in_runs(path: Path, form: Format, batches: int, **options: Any) -> list[Row]:
    """A file read by one run after the other, each of which dies after some batches were committed."""
    positions: dict[str, str] = {}
    rows: list[Row] = []
    while found := take(files(path, form, **options), positions, batches):
        rows += found
    return rows


def check_day(rows: list[Row]) -> None:
    """Equal rows are there too, as different events."""
    assert [json.loads(row.value) for row in rows] == day()
    assert ids(rows) == [str(number) for number in range(1, len(rows) + 1)]
    assert [row.identity.sequence for row in rows] == list(range(1, len(rows) + 1))
    assert len({row.identity.source for row in rows}) == 1
    assert len({row.value for row in rows}) < len(rows), "the data has equal rows"


def test_the_day_as_csv() -> None:
    rows = take(files(DAY, key="InvoiceNo"), {})
    check_day(rows)
    assert [row.key for row in rows] == [row["InvoiceNo"] for row in day()]
    assert rows[0].identity.source.startswith(f"{DAY.absolute().as_uri()}#")


@pytest.mark.parametrize("batches", [1, 3])
def test_csv_resumed(batches: int) -> None:
    check_day(in_runs(DAY, Format.CSV, batches, block_bytes=10_000))


def test_of_a_file_that_shrinks_while_it_is_measured_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found, is emptied and begins anew, and is opened then; the other file still counts."""
    path, positions = tmp_path / "a.csv", dict[str, str]()
    path.write_text("n\n1\n2\n3\n")
    take(files(path), positions)
    (tmp_path / "b.csv").write_text("n\n1\n")
    source = files(tmp_path / "*.csv")
    source.restore(positions)
    find = source._find

    def find_and_shrink() -> list[FilePosition]:
        found = find()
        path.write_text("n\n")
        return found

    monkeypatch.setattr(source, "_find", find_and_shrink)
    assert source.size_bytes() == len("n\n1\n")


@pytest.mark.parametrize("packed", [True, False])
def test_what_is_left_is_what_the_rest_takes(tmp_path: Path, *, packed: bool) -> None:
    """Of a file that was begun by an earlier run as well, so that a bar ends at its end."""
    path, positions = tmp_path / "a.csv", dict[str, str]()
    path.write_bytes(gzip.compress(DAY.read_bytes()) if packed else DAY.read_bytes())
    for batches in (0, 3):
        take(files(path, block_bytes=10_000), positions, batches)
        source = files(path, block_bytes=10_000)
        source.restore(positions)
        left = source.size_bytes()
        assert left == sum(batch.size_bytes for batch in source.batches())
        assert left > 0
        assert source.size_bytes() == 0


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("block_bytes", [10_000, 1 << 20])
def test_packed_csv_resumed(tmp_path: Path, compression: str, block_bytes: int) -> None:
    path = tmp_path / "packed"
    with pa.output_stream(path, compression=compression) as out:
        out.write(DAY.read_bytes())
    check_day(in_runs(path, Format.CSV, 2, block_bytes=block_bytes))


def test_json_lines_pass_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = ['{"k": "x",  "v":1}', "", '{"k":null}', '{"k":"\u00e9"}', '{"other":[1,{"k":2}]}']
    path.write_text("\n".join(lines) + "\r\n", encoding="utf-8")
    rows = take(files(path, Format.JSONL, key="k"), {})
    assert values(rows) == [line for line in lines if line]
    assert ids(rows) == ["1", "3", "4", "5"], "the number of the line, blank ones counted"
    assert [row.key for row in rows] == ["x", None, "\u00e9", None]


def test_json_lines_with_other_keys_than_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"k":1}\n{"k":"b"}\n{"k":[2]}\n', encoding="utf-8")
    assert [row.key for row in take(files(path, Format.JSONL, key="k"), {})] == ["1", "b", "[2]"]


@pytest.mark.parametrize("line", ["{", "[1]", '{"k":1} {"k":2}'])
def test_json_lines_whose_key_cannot_be_found_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"k":"a"}\n\n' + line + "\n", encoding="utf-8")
    for block_bytes in (4, 1 << 20):
        with pytest.raises(InputError, match=rf"{path}: line 3 is no .*it begins b'{re.escape(line)}'"):
            take(files(path, Format.JSONL, key="k", block_bytes=block_bytes), {})


def test_json_lines_that_are_not_utf_8_have_no_key(tmp_path: Path) -> None:
    """They pass as they are, unless somebody must look inside; a number as key takes the slow way."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id":1,"note":"\xff"}\n')
    assert len(list(files(path, Format.JSONL).batches())) == 1
    with pytest.raises(InputError, match=r"line 1 is not UTF-8 \('utf-8' codec can't decode byte 0xff"):
        take(files(path, Format.JSONL, key="id"), {})


def test_json_lines_resumed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"n": number}) for number in range(1000)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = in_runs(path, Format.JSONL, 2, block_bytes=500)
    assert values(rows) == lines
    assert ids(rows) == [str(number) for number in range(1, 1001)]


def test_parquet_resumed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.Table.from_pylist(day())
    pq.write_table(table, path, row_group_size=500)
    check_day(in_runs(path, Format.PARQUET, 2))
    assert [row.key for row in take(files(path, Format.PARQUET, key="InvoiceNo"), {})] == table["InvoiceNo"].to_pylist()


@pytest.mark.parametrize("is_dictionary", [True, False])
def test_wide_rows_of_parquet_come_in_small_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_dictionary: bool
) -> None:
    """Also where the file tells of few bytes, as each value is there once."""
    monkeypatch.setattr(parquet_rows, "BYTES_PER_BATCH", 1 << 20)
    text = pa.array(["a"] * 1000 + ["b" * 100_000] * 100 + [f"{number:0100000}" for number in range(50)])
    table = pa.table({"n": range(1150), "text": text.dictionary_encode() if is_dictionary else text})
    pq.write_table(table, tmp_path / "a.parquet")
    source, positions, sizes = files(tmp_path / "a.parquet", Format.PARQUET), dict[str, str](), list[int]()
    source.restore({})
    for batch in source.batches():
        commit(positions, batch)
        sizes += [] if batch.rows is None else [batch.rows.nbytes]
    assert max(sizes) < 4 << 20
    assert json.loads(next(iter(positions.values())))["rows"] == 1150
    found, rest = dict[str, str](), list[Row]()
    for _ in range(200):
        rest += take(files(tmp_path / "a.parquet", Format.PARQUET), found, 1)
    assert [json.loads(row.value)["n"] for row in rest] == list(range(1150)), "it goes on between any two of them"


def test_parquet_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match="no whole Parquet file"):
        take(files(path, Format.PARQUET), {})


def test_a_packed_file_that_is_cut_off_gives_no_half_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    data = gzip.compress(DAY.read_bytes(), mtime=0)
    path.write_bytes(data[: len(data) // 2])
    positions: dict[str, str] = {}
    rows: list[Row] = []
    source = files(path, block_bytes=10_000)
    source.restore({})
    with pytest.raises(InputError, match="cannot be read"):
        look(source, positions, rows=rows)
    path.write_bytes(data)
    rest = take(files(path), positions)
    assert rows == []
    check_day(rest)


def test_a_file_that_grows_by_half_rows(tmp_path: Path) -> None:
    """Byte by byte: nothing is taken before its line end is there, and then all of it."""
    path = tmp_path / "a.csv"
    data = b'a,b\n1,"x\ny"\n2,"say ""hi"""\r\n\n3,\n'
    positions: dict[str, str] = {}
    source = files(path)
    source.restore(positions)
    rows: list[Row] = []
    for length in range(1, len(data) + 1):
        path.write_bytes(b"") if length == 1 else None
        with path.open("ab") as file:
            file.write(data[length - 1 : length])
        rows += look(source, positions)
    assert [json.loads(row.value) for row in rows] == [
        {"a": "1", "b": "x\ny"},
        {"a": "2", "b": 'say "hi"'},
        {"a": "3", "b": ""},
    ]
    assert ids(rows) == ["1", "2", "3"]


def test_a_last_line_without_an_end_is_left_and_said(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a\n1\n22")
    source, positions = files(path), dict[str, str]()
    assert values(take(source, positions)) == ['{"a":"1"}']
    with pytest.raises(SourceUnfinished, match="2 bytes") as caught:
        source.check_end()
    assert caught.value.retriable, "run again when the writer has ended the line"
    path.write_text("a\n1\n2233\n")
    source = files(path)
    assert values(take(source, positions)) == ['{"a":"2233"}']
    source.check_end()


def test_a_last_line_without_an_end_of_a_finished_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a\n1\n22")
    source, positions = files(path, finished=True), dict[str, str]()
    assert values(take(source, positions)) == ['{"a":"1"}', '{"a":"22"}']
    source.check_end()
    assert take(files(path, finished=True), positions) == []


@pytest.mark.parametrize("block_bytes", [4, 1 << 20])
def test_a_quote_that_is_never_closed_does_not_swallow_the_rest_of_a_finished_file(
    tmp_path: Path, block_bytes: int
) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,note\n1,"x\ny"\n2,"open\n3,x\n4,y\n')
    with pytest.raises(InputError, match="row 2 opens a quote that is never closed") as raised:
        take(files(path, finished=True, block_bytes=block_bytes), {})
    assert '2,"open' in raised.value.message
    assert "--quoting none" in raised.value.action
    path.write_text('id,note\n2,"open\n3,x\n4,y\n')
    assert ids(take(files(path, finished=True, quoted=False), {})) == ["1", "2", "3"]


def test_a_row_that_waits_for_its_closing_quote_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,note\n1,x\n2,"half\n')
    source, positions = files(path), dict[str, str]()
    assert values(take(source, positions)) == ['{"id":"1","note":"x"}']
    with pytest.raises(SourceUnfinished, match="8 bytes, as row 2 opens a quote that is not closed"):
        source.check_end()
    with path.open("a") as file:
        file.write('whole"\n')
    source = files(path, finished=True)
    assert values(take(source, positions)) == ['{"id":"2","note":"half\\nwhole"}']
    source.check_end()


def test_a_header_whose_quote_is_not_closed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,"note\n1,x\n')
    source = files(path)
    assert take(source, {}) == []
    with pytest.raises(SourceUnfinished, match="as the header opens a quote"):
        source.check_end()
    with pytest.raises(InputError, match="the header opens a quote that is never closed"):
        take(files(path, finished=True), {})


def test_a_header_with_a_field_that_is_longer_than_any_name_is_refused(tmp_path: Path) -> None:
    """Its quote is closed somewhere in the rows."""
    path = tmp_path / "a.csv"
    path.write_text('id,"' + "note\n1," * 20_000 + '"\n')
    with pytest.raises(InputError, match=f"{path}: the header cannot be read .*it begins 'id,"):
        take(files(path), {})


def test_a_finished_file_may_be_a_header_without_a_line_end(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,note")
    source = files(path, finished=True)
    assert take(source, {}) == []
    source.check_end()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('a,b\n1,"x\ny"\n\n1\n', "row 2: Expected 2 columns"),
        ("a,a\n1,2\n", "two columns are called 'a'"),
        ("a,\n1,2\n", "column 2 has no name"),
    ],
)
def test_malformed_csv_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    for block_bytes in (4, 1 << 20):
        with pytest.raises(InputError, match=said):
            take(files(path, block_bytes=block_bytes), {})


@pytest.mark.parametrize("header", ["a,a", "a,", '""'])
def test_whoever_has_a_header_that_names_no_columns_is_told_what_to_do(tmp_path: Path, header: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n1,2\n")
    with pytest.raises(InputError, match=f"{path}: the header") as raised:
        take(files(path), {})
    assert "give each column a name of its own" in raised.value.action
    assert "--columns" in raised.value.action


@pytest.mark.parametrize("block_bytes", [4, 24, 1 << 20])
@pytest.mark.parametrize("packed", [True, False])
def test_csv_that_is_not_utf_8_is_refused_with_its_row_and_byte(
    tmp_path: Path, block_bytes: int, *, packed: bool
) -> None:
    path = tmp_path / "a.csv"
    data = '\ufeffname,city\n"M\u00fcller\nund",Ulm\n\nx,y\n'.encode() + b"M\xfcller,Ulm\nx,y\n"
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(InputError) as raised:
        take(files(path, block_bytes=block_bytes), {})
    assert f"{path}: row 3 is not UTF-8: byte {data.rindex(b'M') + 1} of" in raised.value.message
    assert "convert the file to UTF-8" in raised.value.action


def test_a_malformed_row_before_text_that_is_not_utf_8_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n1\n\xff,2\n")
    with pytest.raises(InputError, match="Expected 2 columns"):
        take(files(path), {})


@pytest.mark.parametrize("finished", [True, False])
def test_a_header_that_is_longer_than_any_is_refused(tmp_path: Path, *, finished: bool) -> None:
    """Long before the end of a large file, and not after a search for each of its lines."""
    path = tmp_path / "a.csv"
    path.write_bytes(b'id,"note\n' + b"1,2\n" * 1_000_000)
    with pytest.raises(InputError, match="a header of more than 1,048,576 bytes; it begins") as raised:
        take(files(path, finished=finished), {})
    assert str(path) in raised.value.message
    assert "never closed" in raised.value.action


def test_a_byte_order_mark_hides_no_quote_of_the_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes('\ufeff"first\nname",b\n1,2\n'.encode())
    assert values(take(files(path), {})) == ['{"first\\nname":"1","b":"2"}']


def test_other_dialects(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes('\ufeffa\t"b"\n"1\t2\n'.encode())
    rows = take(files(path, delimiter="\t", quoted=False), {})
    assert [json.loads(row.value) for row in rows] == [{"a": '"1', '"b"': "2"}]
    path.write_bytes(b'"first\nname";b\n1;2\n')
    assert values(take(files(path, delimiter=";"), {})) == ['{"first\\nname":"1","b":"2"}']


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="InvoiceNo, StockCode"):
        take(files(DAY, key="nothing"), {})


@pytest.mark.parametrize("kind", ["nothing", "directory", "pipe"])
def test_a_pattern_that_matches_no_file_is_a_mistake(tmp_path: Path, kind: str) -> None:
    if kind == "directory":
        (tmp_path / "a.csv").mkdir()
    elif kind == "pipe":
        os.mkfifo(tmp_path / "a.csv")
    source = files(tmp_path / "*.csv")
    take(source, {})
    with pytest.raises(ConfigurationError, match="matches no file"):
        source.check_end()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_name_with_brackets_that_is_a_pattern_is_a_mistake(tmp_path: Path, *, is_there: bool) -> None:
    """Whoever waits for app[1].csv waits for app1.csv, and never learns of it."""
    path = tmp_path / "app[1].csv"
    source = files(path)
    source.restore({})
    (tmp_path / "app1.csv").write_text("a\n2\n")
    if is_there:
        path.write_text("a\n1\n")
        for check in (lambda: list(source.batches()), source.check_any, source.check_end):
            with pytest.raises(
                ConfigurationError, match=r"does not find the file of that name: write \S+app\[\[\]1\]\.csv"
            ):
                check()
        assert values(take(files(tmp_path / "app[[]1].csv"), {})) == ['{"a":"1"}']
    else:
        assert values(look(source, {})) == ['{"a":"2"}'], "as a pattern it is one like others"


@pytest.mark.parametrize("pattern", ["logs/*.csv", "logs/a.csv", "logs/*/a.csv", "logs/**/*.csv"])
def test_a_directory_that_may_not_be_looked_into_is_said(pattern: str) -> None:
    """glob passes over it in silence, as if it were empty."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        directory.chmod(0o711)
        (directory / "logs").mkdir(0)
        source = files(directory / pattern)
        try:
            with unprivileged(), pytest.raises(SourceUnavailable, match=rf"{directory}/logs\S* may not be read"):
                source.restore({})
            with unprivileged(), pytest.raises(SourceUnavailable, match="may not be read"):
                source.check_any()
        finally:
            (directory / "logs").chmod(0o700)


@contextmanager
def unprivileged() -> Iterator[None]:
    """To root everything may be read."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_csv_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes('\ufeff1,"x\ny"\n2,\u00e9\n'.encode())
    rows = in_runs(path, Format.CSV, 1, columns=("n", "text"), key="n", block_bytes=8)
    assert [json.loads(row.value) for row in rows] == [{"n": "1", "text": "x\ny"}, {"n": "2", "text": "\u00e9"}]
    assert [row.key for row in rows] == ["1", "2"]
    assert ids(rows) == ["1", "2"]
    with path.open("a") as file:
        file.write("3,4,5\n")
    with pytest.raises(InputError, match="Expected 2 columns"):
        take(files(path, columns=("n", "text")), {})


def test_a_byte_order_mark_is_no_part_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes('\ufeff{"k":"a"}\n{"k":"b"}\n'.encode())
    rows = in_runs(path, Format.JSONL, 1, key="k", block_bytes=16)
    assert values(rows) == ['{"k":"a"}', '{"k":"b"}']
    assert [row.key for row in rows] == ["a", "b"]


def test_a_header_with_line_separators_that_csv_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a\u2028b,c\x0bd\n1,2\n", encoding="utf-8")
    assert [json.loads(row.value) for row in take(files(path), {})] == [{"a\u2028b": "1", "c\x0bd": "2"}]


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_packed_file_that_grows_by_members(tmp_path: Path, compression: str) -> None:
    """Each member is whole by itself, so nothing tells that more will come; a line that goes on in the next one is not split."""
    path, positions, found = tmp_path / "a.csv.packed", dict[str, str](), list[str]()
    for text in ("a\n1\n2", "2\n3\n", "4\n5", "5\n"):
        with path.open("ab") as file:
            file.write(
                pa.compress(text.encode(), codec=compression, asbytes=True)
                if compression == "zstd"
                else gzip.compress(text.encode())
            )
        source = files(path)
        found += [json.loads(value)["a"] for value in values(take(source, positions))]
        if not text.endswith("\n"):
            with pytest.raises(SourceUnfinished):
                source.check_end()
    assert found == ["1", "22", "3", "4", "55"]
    assert take(files(path), positions) == []


@pytest.mark.parametrize("more", [gzip.compress(b""), b"\0" * 512], ids=["empty-member", "zeros"])
def test_a_packed_file_that_grows_by_no_row_is_read_once_more(tmp_path: Path, more: bytes) -> None:
    path, positions = tmp_path / "a.csv.gz", dict[str, str]()
    path.write_bytes(gzip.compress(b"a\n1\n"))
    source = files(path)
    assert len(take(source, positions)) == 1
    with path.open("ab") as file:
        file.write(more)
    assert [len(list(source.batches())) for _ in range(3)] == [1, 0, 0], "and nothing is committed without end"
    assert source.size_bytes() == 0
    with path.open("ab") as file:
        file.write(b"" if more.startswith(b"\0") else gzip.compress(b"2\n"))
    assert ids(look(source, positions)) == ([] if more.startswith(b"\0") else ["2"])


def test_a_last_packed_line_without_an_end_counts_if_the_file_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"a\n1\n22"))
    positions: dict[str, str] = {}
    assert len(take(files(path), positions)) == 1
    assert values(take(files(path, finished=True), positions)) == ['{"a":"22"}']
    assert take(files(path, finished=True), positions) == []


def test_parquet_whose_pages_are_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), path, compression="none")
    data = bytearray(path.read_bytes())
    data[4:60] = b"\xff" * 56
    path.write_bytes(data)
    with pytest.raises(InputError, match="Parquet"):
        take(files(path, Format.PARQUET), {})


@pytest.mark.parametrize("bad", [0, 3, 63, 99])
@pytest.mark.parametrize("key", [None, "seen"])
def test_parquet_that_cannot_be_written_is_refused_with_its_row(tmp_path: Path, bad: int, key: str | None) -> None:
    """A time that Python has not."""
    path = tmp_path / "a.parquet"
    seen = pa.array([[(1 << 60) if row in (bad, 99) else row] for row in range(100)], pa.list_(pa.timestamp("ms")))
    pq.write_table(pa.table({"seen": seen}), path)
    with pytest.raises(InputError, match=rf"{path}: row {bad + 1}: .*column.* cannot be written as JSON") as raised:
        take(files(path, Format.PARQUET, key=key), {})
    assert raised.value.fields["row"] == bad + 1


def test_a_packed_file_is_not_done_because_its_size_is_that_of_what_was_read(tmp_path: Path) -> None:
    """The position counts unpacked bytes: as many of them as the packed file has tell nothing."""
    path, lines, first = tmp_path / "a.jsonl", [f'{{"n":{n:03}}}' for n in range(100)], 40
    text = "".join(f"{line}\n" for line in lines).encode()
    read = len(text) * first // 100
    path.write_bytes(packed(text, read - len(packed(text, 0))))
    assert path.stat().st_size == read
    positions: dict[str, str] = {}
    source = files(path, Format.JSONL, block_bytes=read)
    assert values(take(source, positions, 1)) == lines[:first]
    assert values(take(source, positions)) == lines[first:]


def test_what_a_packed_file_grew_by_is_read_to_its_end_over_a_crash(tmp_path: Path) -> None:
    """It was read to its end once: that end is none any more when the first block behind it is committed."""
    path, positions = tmp_path / "a.jsonl.gz", dict[str, str]()
    old, new = [f'{{"n":{n:03}}}' for n in range(4)], [f'{{"n":{n:03}}}' for n in range(4, 12)]
    path.write_bytes(gzip.compress(_text(old)))
    assert values(take(files(path, Format.JSONL), positions)) == old
    with path.open("ab") as file:
        file.write(gzip.compress(_text(new) + b'{"n":012}'))
    found = values(take(files(path, Format.JSONL, block_bytes=40), positions, 1))
    assert 0 < len(found) < len(new)
    found += values(take(files(path, Format.JSONL), positions))
    assert found == new
    assert values(take(files(path, Format.JSONL, finished=True), positions)) == ['{"n":012}']


def _text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def packed(text: bytes, name_bytes: int) -> bytes:
    """With a file name of that length in the head."""
    found = io.BytesIO()
    with gzip.GzipFile("n" * (name_bytes + 1), "wb", fileobj=found, mtime=0) as file:
        file.write(text)
    return found.getvalue()
