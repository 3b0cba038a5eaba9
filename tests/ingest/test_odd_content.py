"""Files that are not what they seem: other line ends, other packings, no text at all. None loses a row, or makes one of bytes."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import IO, Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.ingest.support import Row, commit, files, ids, look, rows_of, take, values

from onceflow.errors import InputError, SourceUnfinished
from onceflow.ingest.content import Content, checked_content
from onceflow.ingest.files import Format

LINES = b'{"k":"a"}\n{"k":"b"}\n'


def zstd(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return packed


def skipped(size: int = 4, magic: int = 0x184D2A50) -> bytes:
    """A frame that readers are to skip, as pzstd writes it before each of its own."""
    return struct.pack("<II", magic, size) + bytes(size)


def written(directory: Path, data: bytes) -> Path:
    path = directory / "any"
    path.write_bytes(data)
    return path


# ---------------------------------------------------------------------------------------------------------- line ends


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("quoted", [True, False])
def test_a_header_with_a_bare_cr_is_refused(tmp_path: Path, *, finished: bool, quoted: bool) -> None:
    """All lines end with CR; or only the header's, behind which a row would be lost; or it is longer than any header."""
    long = b"k,v\r" + b"1,2\r" * (1 << 19)
    for data in (b"k,v\ra,1\rb,2\r", b"k,v\ra,1\nb,2\n", b"\xef\xbb\xbfk,v\ra,1\r", b'"k",v\ra,"1"\r', long):
        path = written(tmp_path, data)
        with pytest.raises(InputError) as raised:
            take(files(path, finished=finished, quoted=quoted), {})
        assert f"{path}: a carriage return (CR) in the header" in raised.value.message
        at = data.index(b"\r")
        assert f"byte {at} of the text" in raised.value.message
        assert r"`tr '\r' '\n'`" in raised.value.action


def test_a_header_whose_line_end_is_half_written_is_waited_for(tmp_path: Path) -> None:
    path = written(tmp_path, b"k,v\r")
    source, positions = files(path), dict[str, str]()
    assert take(source, positions) == []
    with pytest.raises(SourceUnfinished):
        source.check_end()
    path.write_bytes(b"k,v\r\na,1\r\n")
    assert values(take(files(path), positions)) == ['{"k":"a","v":"1"}']


@pytest.mark.parametrize("block_bytes", [8, 1 << 20])
@pytest.mark.parametrize("quoted", [True, False])
@pytest.mark.parametrize(
    ("rows", "row"),
    [
        (b"a,1\rb,2\nc,3\n", 1),
        (b"a,1\n\nb,2\nc,x\ry\n", 3),
        (b'a,"1\n2"\nc,"x"\rd,4\n', 2),
        (b"a,1\rb,2\rc,3\r", 1),
        (b"a,1\nb,\r\r2\n", 2),
    ],
)
def test_a_bare_cr_in_a_row_is_refused(
    tmp_path: Path, rows: bytes, row: int, *, quoted: bool, block_bytes: int
) -> None:
    """It would begin a row of its own."""
    if b'"1\n' in rows and not quoted:
        return
    data = b"k,v\n" + rows
    path, committed = written(tmp_path, data), dict[str, str]()
    for _ in range(2):  # what was committed before it changes nothing
        with pytest.raises(InputError) as raised:
            take(files(path, quoted=quoted, finished=True, block_bytes=block_bytes), committed)
        at = data.index(b"\r")
        assert (
            f"{path}: a carriage return (CR) in row {row} is no part of a line end: byte {at} " in raised.value.message
        )
        assert r"`tr '\r' '\n'`" in raised.value.action


def test_without_a_header_too(tmp_path: Path) -> None:
    path = written(tmp_path, b"a,1\rb,2\r")
    with pytest.raises(InputError, match="in row 1"):
        take(files(path, columns=("k", "v"), finished=True), {})


@pytest.mark.parametrize("block_bytes", [8, 1 << 20])
def test_a_cr_in_quotes_is_text_and_one_before_a_line_end_belongs_to_it(tmp_path: Path, block_bytes: int) -> None:
    path = written(tmp_path, b'k,"v\r1"\r\na,"1\r2"\r\nb,"\r"\n\r\nc,3" x\r\r\nd,4\r')
    rows = take(files(path, finished=True, block_bytes=block_bytes), {})
    assert [list(json.loads(value).items()) for value in values(rows)] == [
        [("k", key), ("v\r1", value)] for key, value in [("a", "1\r2"), ("b", "\r"), ("c", '3" x'), ("d", "4")]
    ]
    assert ids(rows) == ["1", "2", "3", "4"]


# -------------------------------------------------------------------------------------------------------- empty lines


@dataclass(frozen=True)
class Column:
    """Lines of a file of one column, and the values that they are."""

    data: bytes
    expected: list[str]
    quoted: bool = True


ONE_COLUMN = {
    "in between": Column(b"a\n\nb\n", ["a", "", "b"]),
    "around": Column(b"\n\na\n\n\n", ["", "", "a", "", ""]),
    "alone": Column(b"\n", [""]),
    "CRLF": Column(b"a\r\n\r\n\r\nb\r\n", ["a", "", "", "b"]),
    "CRCRLF": Column(b"a\r\r\n\r\r\nb\r\r\r\n", ["a", "", "b"]),
    "CRCRLF unquoted": Column(b'"\r\r\n\r\r\n"\r\r\n', ['"', "", '"'], quoted=False),
    "quotes of nothing": Column(b'a\n""\n\n""\n', ["a", "", "", ""]),
    "in quotes": Column(b'"a\n\nb"\n\n"\n"\n', ["a\n\nb", "", "\n"]),
    "CRCRLF in quotes": Column(b'"x""\r\r\n"\r\r\n5" p"\r\r\n"\r\r\n"\r\n', ['x"\r\r\n', '5" p"', "\r\r\n"]),
    "spaces": Column(b" \n\n", [" ", ""]),
    "no end": Column(b"a\n\nb", ["a", "", "b"]),
    "half an end": Column(b"a\r\r\n\nb\r\r", ["a", "", "b"]),
}


@pytest.mark.parametrize("block_bytes", [1, 3, 1 << 20])
@pytest.mark.parametrize("kind", ONE_COLUMN)
def test_an_empty_line_of_a_file_of_one_column_is_a_row(tmp_path: Path, kind: str, block_bytes: int) -> None:
    """Wherever a block ends, and a run dies: each row once, under one number."""
    column = ONE_COLUMN[kind]
    expected = [(str(number), value, value) for number, value in enumerate(column.expected, 1)]
    for data, columns in [(b"k\n" + column.data, ()), (column.data, ("k",))]:
        for packed in (data, gzip.compress(data)):
            path = written(tmp_path, packed)
            for batches in (1, 2, None):
                positions, found = dict[str, str](), list[tuple[str, str | None, str]]()
                options: dict[str, Any] = {
                    "columns": columns,
                    "quoted": column.quoted,
                    "block_bytes": block_bytes,
                    "key": "k",
                }
                while rows := take(files(path, finished=True, **options), positions, batches):
                    found += [(row.id, row.key, json.loads(row.value)["k"]) for row in rows]
                assert found == expected


def test_an_empty_line_is_a_row_when_it_has_its_end(tmp_path: Path) -> None:
    """Not before, and not the end of the line before it."""
    path = written(tmp_path, b"k\r\na\r")
    source, found = files(path), list[str]()
    positions: dict[str, str] = {}
    found += values(take(source, positions))
    for more, expected in [(b"\n", ["a"]), (b"\r", ["a"]), (b"\n", ["a", ""]), (b"b\r\n", ["a", "", "b"])]:
        with path.open("ab") as file:
            file.write(more)
        found += values(look(source, positions))
        assert [json.loads(value)["k"] for value in found] == expected


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (b"a\n\n1,2\n", "row 3: Expected 1 columns"),
        (b"a\n\n\xff\n", "row 3 is not UTF-8: byte 5 "),
        (b"a\r\r\n\r\n\xff\n", "row 3 is not UTF-8: byte 8 "),
        (b"a\n\nb\rc\n", "in row 3 is no part of a line end: byte 6 "),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_errors_count_the_empty_lines_that_are_rows(tmp_path: Path, rows: bytes, said: str, block_bytes: int) -> None:
    path = written(tmp_path, b"k\n" + rows)
    with pytest.raises(InputError) as raised:
        take(files(path, block_bytes=block_bytes), {})
    assert said in raised.value.message


def test_a_position_that_counted_no_empty_lines_goes_on_behind_its_bytes(tmp_path: Path) -> None:
    """As an earlier version committed it, of the rows a and b: the next one is the third, and none comes again."""
    path, positions = written(tmp_path, b"k\na\n\nb\n"), dict[str, str]()
    take(files(path), positions)
    [(source, text)] = positions.items()
    assert json.loads(text)["rows"] == 3
    positions[source] = json.dumps({**json.loads(text), "rows": 2})
    assert take(files(path), positions) == []
    with path.open("ab") as file:
        file.write(b"\nc\n")
    rows = take(files(path), positions)
    assert list(zip(ids(rows), values(rows), strict=True)) == [("3", '{"k":""}'), ("4", '{"k":"c"}')]


@pytest.mark.parametrize("names", ["k,v", "k"])
@pytest.mark.parametrize("quoted", [True, False])
def test_a_byte_order_mark_within_a_file_is_text_wherever_a_block_ends(
    tmp_path: Path, names: str, *, quoted: bool
) -> None:
    """As where files that begin with one each are put together."""
    rows = [["a", "1"], ["\ufeffk", "v"], ['\ufeff"b"', "\ufeff"], ["\ufeff", ""], ["\ufeff\ufeffc", "\ufeffd"]]
    wanted = [dict(zip(names.split(","), row, strict=False)) for row in rows]
    data = "".join(",".join(row.values()) + "\n" for row in wanted).encode()
    for header, columns in ((f"{names}\n".encode(), ()), (b"", tuple(names.split(",")))):
        for mark in (b"", b"\xef\xbb\xbf"):
            path = written(tmp_path, mark + header + data)
            for block_bytes in (1, 5, 9, 16, 1 << 20):
                found = take(files(path, key="k", quoted=quoted, columns=columns, block_bytes=block_bytes), {})
                assert [json.loads(value) for value in values(found)] == wanted
                assert [row.key for row in found] == [row["k"] for row in wanted]


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r\r\n"])
def test_an_empty_line_between_rows_of_several_columns_is_none(tmp_path: Path, end: bytes, block_bytes: int) -> None:
    path = written(tmp_path, b"k,v\n\na,1\n\n\n,\nb,2\n\n".replace(b"\n", end))
    rows = take(files(path, block_bytes=block_bytes), {})
    assert values(rows) == ['{"k":"a","v":"1"}', '{"k":"","v":""}', '{"k":"b","v":"2"}']
    assert ids(rows) == ["1", "2", "3"]


# ------------------------------------------------------------------------------------------------------------- packed


@pytest.mark.parametrize("magic", range(0x184D2A50, 0x184D2A60))
def test_zstd_that_begins_with_a_frame_to_skip(tmp_path: Path, magic: int) -> None:
    path = written(tmp_path, skipped(magic=magic) + skipped(0, magic) + zstd(LINES) + skipped(900, magic) + zstd(LINES))
    positions: dict[str, str] = {}
    assert values(take(files(path, Format.JSONL), positions)) == LINES.decode().split() * 2
    assert take(files(path, Format.JSONL), positions) == []


@pytest.mark.parametrize("form", [Format.CSV, Format.JSONL])
def test_a_frame_to_skip_that_is_cut_off_is_no_text(tmp_path: Path, form: Format) -> None:
    """A file that is still being copied."""
    data = skipped(900) + zstd(b"k\na\n")
    for size in (4, 6, 8, 100, 908 + 6):
        with pytest.raises(InputError, match="cannot be read"):
            take(files(written(tmp_path, data[:size]), form, finished=True), {})


@pytest.mark.parametrize("form", [Format.CSV, Format.JSONL])
@pytest.mark.parametrize("zeros", [1, 9, 512, (1 << 16) + 5])
def test_zeros_behind_a_gzip_file_are_no_rows(tmp_path: Path, zeros: int, form: Format) -> None:
    """As a tape adds them. Its own end may have some as well: so the size does, and all of nothing."""
    for data in (LINES, LINES * 9000, LINES + b"x"):
        path = written(
            tmp_path, gzip.compress(data[:10]) + gzip.compress(data[10:]) + gzip.compress(b"") + bytes(zeros)
        )
        positions: dict[str, str] = {}
        rows = take(files(path, form, finished=True, columns=("k",) if form is Format.CSV else ()), positions)
        assert len(rows) == len(data.splitlines())
        assert take(files(path, form, finished=True, columns=("k",) if form is Format.CSV else ()), positions) == []


@pytest.mark.parametrize("behind", [gzip.compress(LINES, mtime=0), b"garbage"], ids=["member", "garbage"])
@pytest.mark.parametrize("zeros", [1, 512, (1 << 16) + 5])
def test_zeros_within_a_gzip_file_are_a_hole(tmp_path: Path, zeros: int, behind: bytes) -> None:
    """As in a file whose place is reserved before it is written."""
    path = written(tmp_path, gzip.compress(LINES) + bytes(zeros) + behind)
    with pytest.raises(InputError, match=r"cannot be read: zeros follow a part of it, and more follows these"):
        take(files(path, Format.JSONL), {})


def test_gzip_that_is_cut_off_anywhere_is_said(tmp_path: Path) -> None:
    """In its second member, at whose beginning it would be whole."""
    member = gzip.compress(LINES)
    for size in range(1, len(member)):
        path = written(tmp_path, member + member[:size])
        with pytest.raises(InputError, match="cannot be read: it is cut off"):
            take(files(path, Format.JSONL), {})


@pytest.mark.parametrize("at", [-9, -6, -2])
def test_gzip_that_is_damaged_is_refused(tmp_path: Path, at: int) -> None:
    """Its content, the checksum of that, and its length."""
    data = bytearray(gzip.compress(LINES))
    data[at] ^= 0xFF
    with pytest.raises(InputError, match="cannot be read"):
        take(files(written(tmp_path, bytes(data)), Format.JSONL), {})


NUMBERED = [f'{{"n":{number:03}}}' for number in range(200)]


def damaged(kind: str) -> tuple[bytes, bytes]:
    """A packed file whose end alone tells that it is damaged, or cut off; and as it was."""
    lines = "".join(f"{line}\n" for line in NUMBERED).encode()
    if kind.startswith("zstd"):
        whole = zstd(lines[:1000]) + zstd(lines[1000:])
        return whole[:-5], whole
    whole = gzip.compress(lines, compresslevel=0, mtime=0)
    return (whole.replace(b'{"n":005}', b'{"n":905}') if "bit" in kind else whole[:-5]), whole


@pytest.mark.parametrize("is_moved", [True, False])
@pytest.mark.parametrize("kind", ["gzip, a bit", "gzip, cut off", "zstd, cut off"])
def test_nothing_is_taken_of_a_packed_file_whose_end_tells_that_it_is_damaged(
    tmp_path: Path, kind: str, *, is_moved: bool
) -> None:
    """Blocks before the end would be wrong rows, committed long before anybody knows. A good copy in its place is read whole."""
    bad, good = damaged(kind)
    path, positions, rows = written(tmp_path, bad), dict[str, str](), list[Row]()
    source = files(path, Format.JSONL, block_bytes=50)
    source.restore({})
    with pytest.raises(InputError, match=f"{path} cannot be read") as raised:
        look(source, positions, rows=rows)
    assert rows == []
    assert "if it is damaged: put a good copy there" in raised.value.action
    if is_moved:
        (tmp_path / "copy").write_bytes(good)
        (tmp_path / "copy").rename(path)
    else:
        path.write_bytes(good)
    assert values(look(source, positions)) == NUMBERED
    assert look(source, positions) == []


@pytest.mark.parametrize("kind", ["gzip, a bit", "gzip, cut off", "zstd, cut off"])
def test_what_a_packed_file_grows_by_is_looked_at_before_it_is_taken(tmp_path: Path, kind: str) -> None:
    """Also where it grows after that was done: what has come since waits for the next look, which refuses it."""
    bad, good = damaged(kind)
    path, positions = written(tmp_path, good), dict[str, str]()
    source = files(path, Format.JSONL, block_bytes=50)
    source.restore({})
    rows = list[Row]()
    for number, batch in enumerate(source.batches()):
        commit(positions, batch)
        rows += [] if batch.rows is None else rows_of(batch.rows)
        if number == 0:
            with path.open("ab") as file:
                file.write(bad)
    assert values(rows) == NUMBERED
    with pytest.raises(InputError, match="cannot be read"):
        look(source, positions, rows=rows)
    assert values(rows) == NUMBERED
    with path.open("r+b") as file:
        file.seek(len(good))
        file.write(good)
    assert values(look(source, positions, rows=rows)) == NUMBERED * 2
    assert ids(rows) == [str(number) for number in range(1, 401)]


@pytest.mark.parametrize("header", [b"", b"a\n"])
def test_a_packed_file_with_half_a_row_is_unpacked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: bytes
) -> None:
    """And not at each look, for ever; what is left is told by each, and read when the rest has come."""
    unpacked: list[int] = []

    def counted(file: IO[bytes], start: int) -> Content:
        unpacked.append(start)
        return checked_content(file, start)

    monkeypatch.setattr("onceflow.ingest.files.checked_content", counted)
    path, form = written(tmp_path, gzip.compress(header + b"1\n2")), Format.CSV if header else Format.JSONL
    source, positions = files(path, form), dict[str, str]()
    rows = take(source, positions)
    for _ in range(3):
        assert look(source, positions) == []
        with pytest.raises(SourceUnfinished, match=f"{path}: 1 bytes"):
            source.check_end()
    assert len(unpacked) == 1
    with path.open("ab") as file:
        file.write(gzip.compress(b"2\n"))
    look(source, positions, rows=rows)
    source.check_end()
    assert len(unpacked) == 2
    assert [row.value for row in rows] == (['{"a":"1"}', '{"a":"22"}'] if header else ["1", "22"])


def test_who_begins_again_unpacks_a_file_with_half_a_row_again(tmp_path: Path) -> None:
    """What was read before may not be committed."""
    path = written(tmp_path, gzip.compress(b"1\n2"))
    source = files(path, Format.JSONL)
    for _ in range(2):
        assert values(take(source, {})) == ["1"]


def _zip() -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as file:
        file.writestr("a.csv", "k\na\n")
    return found.getvalue()


def _tar() -> bytes:
    found, member = io.BytesIO(), tarfile.TarInfo("a.csv")
    member.size = 4
    with tarfile.open(fileobj=found, mode="w") as file:
        file.addfile(member, io.BytesIO(b"k\na\n"))
    return found.getvalue()


def _lz4() -> bytes:
    found = io.BytesIO()
    with pa.CompressedOutputStream(found, "lz4") as out:
        out.write(b"k\na\n")
        out.flush()
        return found.getvalue()


def _parquet() -> bytes:
    found = io.BytesIO()
    pq.write_table(pa.table({"k": ["a"]}), found)
    return found.getvalue()


FOREIGN = {
    "xz": lzma.compress(b"k\na\n"),
    "bzip2": bz2.compress(b"k\na\n"),
    "bzip2 of nothing": bz2.compress(b""),
    "zip": _zip(),
    "lz4": _lz4(),
    "lz4 behind a frame to skip": skipped(900) + _lz4(),
    "7z": b"7z\xbc\xaf\x27\x1c\x00\x04\n",
    "snappy": b"\xff\x06\x00\x00sNaPpY\x01\n",
    "gzip twice": gzip.compress(gzip.compress(b"k\na\n")),
    "zstd in gzip": gzip.compress(skipped(900) + zstd(b"k\na\n")),
    "tar": _tar(),
    "tar in gzip": gzip.compress(_tar()),
    "Parquet": _parquet(),
    "UTF-16": "k\na\n".encode("utf-16"),
    "UTF-16 BE": "\ufeffk\na\n".encode("utf-16-be"),
    "UTF-16 without a mark": "k\na\n".encode("utf-16-le"),
    "UTF-32": "k\na\n".encode("utf-32"),
}


@pytest.mark.parametrize("options", [{}, {"columns": ("k",), "quoted": False}, {"form": Format.JSONL}])
@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_text_is_refused_before_its_first_row(tmp_path: Path, kind: str, options: dict[str, object]) -> None:
    path = written(tmp_path, FOREIGN[kind])
    source = files(path, **{"form": Format.CSV, "finished": True, **options})  # type: ignore[arg-type]
    source.restore({})
    with pytest.raises(InputError) as raised:
        assert [batch for batch in source.batches() if batch.rows is not None] == []
    said = {"gzip twice": "gzip", "zstd in gzip": "zstd", "tar in gzip": "tar", "UTF-32": "UTF-16"}.get(
        kind, kind.partition(" ")[0]
    )
    assert str(path) in raised.value.message
    assert said in raised.value.message
    assert "nothing of it was written" in raised.value.action
    assert raised.value.fields["path"] == str(path)


@pytest.mark.parametrize("data", [b"BZh\na\n", b"BZh9,v\na,1\n", b"PAR1,PK\na,1\n"])
def test_text_that_begins_as_other_files_do_is_text(tmp_path: Path, data: bytes) -> None:
    assert len(take(files(written(tmp_path, data)), {})) == 1


# ------------------------------------------------------------------------------------------------------------ Parquet


def test_a_parquet_file_of_numbers_that_json_lacks_and_of_keys_that_it_quotes(tmp_path: Path) -> None:
    path, uuid = tmp_path / "a.parquet", "00000000-0000-0000-0000-000000000005"
    columns = {
        "id": pa.array([UUID(uuid), None], pa.uuid()),
        "data": pa.array([b"\x00\x01", None]),
        "took": pa.array([5, None], pa.duration("us")),
        "v": pa.array([float("nan"), None]),
        "all": pa.array([[float("nan"), 1.5], [float("-inf")]]),
    }
    pq.write_table(pa.table(columns), path)
    told = {"id": uuid, "data": "AAE=", "took": "0:00:00.000005", "v": "NaN"}
    for key, text in told.items():
        rows = take(files(path, Format.PARQUET, key=key), {})
        assert [row.key for row in rows] == [text, None]
        assert [json.loads(value) for value in values(rows)] == [
            {**told, "all": ["NaN", 1.5]},
            {**dict.fromkeys(told), "all": ["-Infinity"]},
        ]


# --------------------------------------------------------------------------------------------------- keys of JSON Lines


def keys(path: Path, **options: object) -> list[bytes | None]:
    source = files(path, Format.JSONL, key="k", **options)
    source.restore({})
    batches = [batch.rows for batch in source.batches() if batch.rows is not None]
    return [key for rows in batches for key in rows.column("key").cast(pa.binary()).to_pylist()]


@pytest.mark.parametrize(
    ("escape", "key"),
    [
        (r"\ud800", b"\xed\xa0\x80"),
        (r"\ud800x", b"\xed\xa0\x80x"),
        (r"\udc00", b"\xed\xb0\x80"),
        (r"\ude00\ud83d", b"\xed\xb8\x80\xed\xa0\xbd"),
        (r"\ud83d\ude00", "\U0001f600".encode()),
    ],
)
def test_half_a_surrogate_pair_is_a_key_of_its_own(tmp_path: Path, escape: str, key: bytes) -> None:
    """The same whatever stands around it: a number as a key takes another way through the block."""
    path = written(tmp_path, f'{{"k":"a"}}\n{{"k":"{escape}"}}\n{{}}\n'.encode())
    assert keys(path) == [b"a", key, None]
    path.write_bytes(path.read_bytes() + b'{"k":1}\n')
    assert keys(path) == keys(path, block_bytes=1) == [b"a", key, None, b"1"]


@pytest.mark.parametrize(
    "number", ["1e400", "-1E+400", "1.10", "1.1", "0.1000000000000000055", "-0", "1e2", "9" * 5000, "NaN", "-Infinity"]
)
def test_a_number_is_the_key_that_it_is_in_the_file(tmp_path: Path, number: str) -> None:
    """Alone, within another value, and whatever stands beside it."""
    path = written(tmp_path, f'{{"k":{number}}}\n{{"k": [{number},{{"a":{number}}}, "1", true]}}\n'.encode())
    assert keys(path) == [number.encode(), f'[{number}, {{"a": {number}}}, "1", true]'.encode()]
    path.write_bytes(f'{{"x":{number},"k":"a"}}\n{{"k":null,"x":{number}}}\n'.encode())
    assert keys(path) == [b"a", None]


def test_objects_that_are_not_one_a_line_are_refused(tmp_path: Path) -> None:
    """As many objects as lines, with keys of other lines: in every order of the lines, and alone."""
    for lines in permutations([b'{"k":"a"}{"k":"b"}', b'{"x":', b"1}", b'{"k":"c"}']):
        path = written(tmp_path, b"\n".join(lines) + b"\n")
        number = 2 if lines[0] == b'{"k":"c"}' else 1
        for block_bytes in (1, 1 << 20):
            with pytest.raises(InputError, match=f"line {number} is no JSON"):
                keys(path, block_bytes=block_bytes)


@pytest.mark.parametrize(
    "broken", [b'{"x":{}\n{"k":"d"}}', b'{"x":[{}\n,{}]}', b'{"x":"}\n{"}', b'{"k":"d"}\n{"x":{}\n}']
)
def test_an_object_over_two_lines_is_refused_beside_a_line_of_two(tmp_path: Path, broken: bytes) -> None:
    path = written(tmp_path, b'{"k":"a"}{"k":"b"}\n' + broken + b"\n")
    with pytest.raises(InputError, match="line 1 is no JSON"):
        keys(path)
    path.write_bytes(b'{"k":"a"}\n' + broken + b"\n")
    with pytest.raises(InputError, match=r"line [23] is no JSON"):
        keys(path)


def test_a_line_that_is_not_utf_8_is_refused_with_any_key(tmp_path: Path) -> None:
    for line in (b'{"k":"a","note":"\xff"}', b'{"k":"\xff"}', b'{"k":1,"note":"\xff"}'):
        path = written(tmp_path, b'{"k":"a"}\n' + line + b"\n")
        with pytest.raises(InputError, match="line 2 is not UTF-8"):
            keys(path)


def test_an_object_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"k":1}\n{"k":' + b"[" * 200_000 + b"]" * 200_000 + b"}\n")
    with pytest.raises(InputError, match="line 2 is nested too deeply"):
        keys(path)


def test_spaces_around_an_object_are_no_mistake(tmp_path: Path) -> None:
    path = written(tmp_path, b' \t{"k":"a"} \r\n\n{"k":"b"}\n')
    assert keys(path) == [b"a", b"b"]


def test_a_parquet_file_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    """Of the two most readers of JSON keep the last."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    for key in (None, "a"):
        with pytest.raises(InputError, match=f"{path}: two columns are called 'a'"):
            take(files(path, Format.PARQUET, key=key), {})


def test_a_bit_that_is_damaged_in_a_parquet_file_is_seen_where_its_writer_has_noted_checksums(tmp_path: Path) -> None:
    path, numbers = tmp_path / "a.parquet", [1, 777, 9999]
    for noted in (False, True):
        options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": noted}
        pq.write_table(pa.table({"n": pa.array(numbers)}), path, **options)
        whole, positions = path.read_bytes(), dict[str, str]()
        assert [json.loads(value)["n"] for value in values(take(files(path, Format.PARQUET), {}))] == numbers
        assert whole.count(struct.pack("<q", 777)) == 1
        path.write_bytes(whole.replace(struct.pack("<q", 777), struct.pack("<q", 777 + (1 << 32))))
        if not noted:  # the control
            assert '{"n":4294968073}' in values(take(files(path, Format.PARQUET), {}))
            continue
        with pytest.raises(InputError, match=r"is no whole Parquet file, or is damaged: .*CRC"):
            take(files(path, Format.PARQUET), positions)
        path.write_bytes(whole)
        assert len(take(files(path, Format.PARQUET), positions)) == len(numbers)


def test_a_parquet_file_with_a_time_that_is_none_is_refused_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"seen": pa.array([0, 1, (1 << 63) - 1], pa.timestamp("us"))}), path)
    for key in (None, "seen"):
        with pytest.raises(InputError, match=f"{path}: row 3: .*cannot be written as JSON") as raised:
            take(files(path, Format.PARQUET, key=key), {})
        assert raised.value.fields["row"] == 3
