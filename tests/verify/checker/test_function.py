"""Output held against a function that stands in a file, by the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceflow.verify.checker.__main__ import main
from onceflow.verify.history import Recorder, read_history, write_history
from onceflow.verify.history.recorder import log_end, poll, position, send, stable_end, window

DOUBLED = """
from prices import FACTOR

def doubled(key, offset, value):
    yield key.replace("in", "out"), value * FACTOR
"""
COLUMNAR = """
from onceflow.verify.checker import expand

doubled = expand({"in-0": "out-0", "in-1": "out-1"}, times=2)
"""
FLOATS = """
import pyarrow

def f(records):
    return pyarrow.table({"input": [0.5], "key": ["out-0"], "value": [2]})
"""
COUNTING = """
from itertools import count
numbers = count(1)
def f(key, offset, value):
    yield "out-0", next(numbers)
"""
ONCE_ONLY = """
seen = set()
def f(key, offset, value):
    if value not in seen:
        seen.add(value)
        yield "out-0", 2 * value
"""
HELD = ["--inputs", "in-*", "--outputs", "out-0,out-1"]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The function doubles values, and imports what lies beside it."""
    (tmp_path / "prices.py").write_text("FACTOR = 2")
    (tmp_path / "shop.py").write_text(DOUBLED)
    return tmp_path


def history(directory: Path, *output: int) -> str:
    """Input 1 and 2 on in-0, and the output of out-0, both read to their ends; out-1 has none; at out-2 nobody looked."""
    recorder = Recorder()
    recorder.add("writer", send("in-0", 1, 0), send("in-0", 2, 1))
    recorder.add("copier", send("out-2", 3), status="fail")
    recorder.add("reader", poll("in-0", 0, 1), poll("in-0", 1, 2))
    read = [poll("out-0", offset, value) for offset, value in enumerate(output)]
    recorder.add("reader", *read, window("out-0", 0, 9), window("out-1", 0, 1))
    recorder.add("probe", position("in-0", 2, "copy"), log_end("out-0", 9), log_end("out-1", 1))
    path = directory / "run.jsonl"
    write_history(recorder.table(), path)
    return str(path)


def test_output_is_what_the_function_says(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--function", f"{shop / 'shop.py'}:doubled", *HELD, "--group", "copy"]
    assert main([history(shop, 2, 4), *chosen]) == 0
    told = capsys.readouterr().out
    assert "diverged_output" in told
    assert "what should be on out-0" not in told  # the function says it
    assert main([history(shop, 2), *chosen, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert {name: count for name, count in report["counts"].items() if count} == {"diverged_output": 1}
    (example,) = report["examples"]
    assert (example["key"], example["value"], example["detail"]) == ("in-0", 2, "output of this record is missing")


def test_without_a_function_output_is_not_judged(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([history(shop, 7)]) == 0
    told = capsys.readouterr().out
    assert "diverged_output" not in told
    assert "not judged: what should be on out-0" in told


def test_a_columnar_function(shop: Path) -> None:
    (shop / "columnar.py").write_text(COLUMNAR)
    chosen = ["--function", f"{shop / 'columnar.py'}:doubled", *HELD]
    assert main([history(shop, 2, 3, 4, 5), *chosen]) == 0
    assert main([history(shop, 2, 3, 4), *chosen]) == 1


def test_the_smallest_history_shows_the_same_for_the_same_reason(shop: Path) -> None:
    """Without the input there would be a finding at the same place as well, of output that nothing leads to."""
    chosen = ["--function", f"{shop / 'shop.py'}:doubled", *HELD, "--keep", str(shop / "kept")]
    assert main([history(shop, 4, 2), *chosen]) == 1
    kept = read_history(shop / "kept" / "diverged_output.jsonl").to_pylist()
    records = [(row["key"], row["value"]) for row in kept]
    assert sorted(records) == [("in-0", 1), ("in-0", 2), ("out-0", 2), ("out-0", 4)]


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        (["--inputs", "in-*,inn-*", "--outputs", "out-0"], "the history has no key inn-*"),
        (
            ["--inputs", "inn-0", "--outputs", "out-0, out-7"],
            "the history has no key inn-0; the history has no key out-7",
        ),
        (["--inputs", "in-0", "--outputs", "out-0", "--group", "other"], "the history has no group other"),
        (
            ["--inputs", "in-0", "--outputs", "out-1"],
            "the function gives output of out-0, which the outputs do not name",
        ),
    ],
)
def test_names_of_nothing_are_told_and_decide_nothing(
    chosen: list[str], why: str, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an input that is misspelt all of the output would seem to be invented, and elsewhere all of it missing."""
    assert main([history(shop, 2, 4), "--function", f"{shop / 'shop.py'}:doubled", *chosen]) == 2
    assert f"[FUNCTION_INVALID] {why} What to do:" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("outputs", ["out-*", "out-0,out-2"])
def test_an_output_at_which_nobody_looked_proves_nothing(
    outputs: str, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--function", f"{shop / 'shop.py'}:doubled", "--inputs", "in-0", "--outputs", outputs]
    assert main([history(shop, 2, 4), *chosen]) == 2
    assert "nothing is proved: nobody looked at out-2" in capsys.readouterr().out


def test_an_output_that_the_function_alone_knows_proves_nothing(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The partition was never read, or lost all that it had."""
    (shop / "more.py").write_text("def f(key, offset, value):\n    yield 'out-0', 2 * value\n    yield 'out-3', value")
    chosen = ["--function", f"{shop / 'more.py'}:f", "--inputs", "in-0", "--outputs", "out-0,out-1,out-[3]"]
    assert main([history(shop, 2, 4), *chosen]) == 2
    assert "the history has no key out-[3]" in capsys.readouterr().err
    chosen[-1] = "out-[013]"
    assert main([history(shop, 2, 4), *chosen]) == 2
    assert "nothing is proved: nobody looked at out-3" in capsys.readouterr().out


def test_without_a_position_what_is_behind_the_last_output_is_not_judged(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--function", f"{shop / 'shop.py'}:doubled", *HELD]
    assert main([history(shop), *chosen]) == 0
    assert "not judged: output behind the last one of in-0 that is visible" in capsys.readouterr().out
    assert main([history(shop), *chosen, "--group", "copy"]) == 1


UPPER = """
def upper(key, offset, value):
    yield key.replace("sales", "paid"), value.upper() + ""

def placed(key, offset, value):
    yield key.replace("sales", "paid"), f"{value.upper()}{offset if offset > 9 else ''}"

def at_once(records):
    from onceflow.verify.checker import per_record
    return per_record(upper)(records)
"""


def timed_out(directory: Path, *output: str) -> str:
    """A send to sales-1 had no answer, and nobody reads it; a transaction makes this output of all of sales-0."""
    recorder, names = Recorder(), ("v0", "v1", "v2")
    recorder.add("w", *[send("sales-0", name, offset) for offset, name in enumerate(names)])
    recorder.add("w", send("sales-1", "late"), status="info")
    read = [poll("sales-0", offset, name) for offset, name in enumerate(names)]
    sent = [send("paid-0", name) for name in output]
    consumed = [poll("sales-0", offset, name, "g") for offset, name in enumerate(names)]
    recorder.add("c", *consumed, position("sales-0", 3, "g"), *sent, txn=1)
    recorder.add("reader", *read, window("sales-0", 0, 3))
    recorder.add("reader", *[poll("paid-0", *row) for row in enumerate(output)], window("paid-0", 0, 7))
    recorder.add("probe", log_end("sales-0", 3), stable_end("sales-0", 3), position("sales-0", 3, "g"))
    (directory / "upper.py").write_text(UPPER)
    write_history(recorder.table(), directory / "run.jsonl")
    return str(directory / "run.jsonl")


def counted(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, int], str]:
    """What was found of each anomaly, and the line of what is not judged of output that comes from nowhere."""
    main([*arguments, "--inputs", "sales-*", "--outputs", "paid-*", "--group", "g", "--json"])
    report = json.loads(capsys.readouterr().out)
    (line,) = [line for line in report["not_judged"] if line.startswith("what ")] or [""]
    return {name: count for name, count in report["counts"].items() if count}, line


def test_a_send_without_an_answer_excuses_its_own_output_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = timed_out(tmp_path, "V0", "V1", "V2", "BAD1", "BAD2", "BAD3")
    assert counted([path, "--function", f"{tmp_path / 'upper.py'}:upper"], capsys) == ({"diverged_output": 3}, "")
    path = timed_out(tmp_path, "V0", "V1", "V2")
    assert counted([path, "--function", f"{tmp_path / 'upper.py'}:placed"], capsys) == ({}, "")


@pytest.mark.parametrize(
    ("name", "why"),
    [("placed", "the function needs its offset"), ("at_once", "the function takes all of the input at once")],
)
def test_what_was_excused_is_told(name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = timed_out(tmp_path, "V0", "V1", "V2", "BAD1", "BAD2", "BAD3")
    found, line = counted([path, "--function", f"{tmp_path / 'upper.py'}:{name}"], capsys)
    assert found == {}
    assert line.startswith("what 3 records on paid-0 come from: it may be input on sales-1 of which nobody knows")
    assert f"and may lead to any output: {why}" in line


@pytest.mark.parametrize("given", ["3", "1.5", "b'x'"])
def test_what_is_no_text_is_not_taken_for_text(given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = timed_out(tmp_path, "3", "1.5", "x")
    (tmp_path / "mine.py").write_text(f"def f(key, offset, value):\n    yield 'paid-0', {given}")
    chosen = ["--function", f"{tmp_path / 'mine.py'}:f", "--inputs", "sales-*", "--outputs", "paid-*"]
    assert main([path, *chosen]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "FUNCTION_INVALID" in said
    assert f"of sales-0 at offset 0 (value 'v0') it gives a value {given} of type" in said
    assert "and is to give a str, as in the history" in said


def test_a_name_with_the_signs_of_a_pattern_is_that_key(shop: Path) -> None:
    recorder = Recorder()
    recorder.add("writer", send("in[0]-0", 1, 0))
    recorder.add("reader", poll("in[0]-0", 0, 1), window("out-0", 0, 1), poll("out-0", 0, 2))
    write_history(recorder.table(), shop / "run.jsonl")
    (shop / "mine.py").write_text("def f(key, offset, value):\n    yield 'out-0', 2 * value")
    chosen = ["--function", f"{shop / 'mine.py'}:f", "--inputs", "in[0]-0", "--outputs", "out-0"]
    assert main([str(shop / "run.jsonl"), *chosen]) == 0


def test_a_file_is_run_as_a_script_is(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has classes whose module is looked for, and prints, which is none of the report."""
    (shop / "mine.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Price:\n    value: int\n"
        "print('loaded')\n"
        "def f(key, offset, value):\n    print('called')\n    yield 'out-0', 2 * Price(value).value\n"
    )
    assert main([history(shop, 2, 4), "--function", f"{shop / 'mine.py'}:f", *HELD, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["good"] is True
    assert "loaded\ncalled\ncalled\n" in said.err


def test_a_function_that_fails_on_a_part_of_the_history_hinders_no_smallest_one(shop: Path) -> None:
    (shop / "mine.py").write_text(
        "from onceflow.verify.checker import expand\n"
        "def f(records):\n    records['value'][0]\n    return expand({'in-0': 'out-0'})(records)\n"
    )
    chosen = ["--function", f"{shop / 'mine.py'}:f", *HELD, "--keep", str(shop / "kept")]
    assert main([history(shop, 1, 2, 7), *chosen]) == 1
    kept = read_history(shop / "kept" / "diverged_output.jsonl").to_pylist()
    assert {row["key"] for row in kept} == {"in-0", "out-0"}


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        (DOUBLED, "halved", "the file has no halved"),
        (DOUBLED, "FACTOR", "FACTOR is no function"),
        ("raise OSError('no prices')", "f", "the file cannot be run: OSError: no prices"),
        ("def f(one, two):\n    pass", "f", "and they are (one, two)"),
        ("def f(key, offset=0, value=None):\n    pass", "f", "and they are (key, offset=0, value=None)"),
        ("f = dict", "f", "nothing tells what it takes"),
        ("raise SystemExit(0)", "f", "the file cannot be run: SystemExit"),
        ("def f(key, offset, value):\n    exit(0)", "f", "it failed: SystemExit"),
        ("import pytest\npytest.fail('no')", "f", "the file cannot be run: Failed: no"),
        ("import pytest\ndef f(key, offset, value):\n    pytest.fail('no')", "f", "it failed: Failed: no"),
        ("def f(key, offset, value):\n    raise GeneratorExit('no')", "f", "it failed: GeneratorExit: no"),
        ("def f(key, offset, value):\n    yield 'out-0', None", "f", "none of them is None"),
        (FLOATS, "f", "is the number of a row, not double"),
        ("def f(key, offset, value):\n    return 1 / 0", "f", "it failed: ZeroDivisionError"),
        ("def f(key, offset, value):\n    return [value]", "f", "it failed: TypeError"),
        ("def f(records):\n    return records", "f", "a table with the columns input, key and value"),
        (
            "def f(key, offset, value):\n    yield 'out-0', 'one'",
            "f",
            "gives a value 'one' of type str, and is to give an int",
        ),
        (
            "def f(key, offset, value):\n    yield 'out-0', 2.0",
            "f",
            "gives a value 2.0 of type float, and is to give an int",
        ),
        (
            "def f(key, offset, value):\n    yield 'out-0', True",
            "f",
            "of in-0 at offset 0 (value 1) it gives a value True",
        ),
        (
            "def f(key, offset, value):\n    yield b'out-0', 2",
            "f",
            "gives a key b'out-0' of type bytes, and is to give a str",
        ),
        (FLOATS.replace("0.5", "0").replace("[2]", "[2.0]"), "f", "are double, and are to be whole numbers"),
        (
            COUNTING,
            "f",
            "of in-0 at offset 0 (value 1) it made [('out-0', 1)], and [('out-0', 3)] when it was called again",
        ),
        (ONCE_ONLY, "f", "of in-0 at offset 0 (value 1) it made [('out-0', 2)], and [] when it was called again"),
    ],
    ids=[
        "none",
        "no function",
        "raises",
        "parameters",
        "optional parameters",
        "no signature",
        "file exits",
        "exits",
        "file fails as a test does",
        "fails as a test does",
        "ends as a generator does",
        "none as value",
        "halves of rows",
        "fails",
        "no pairs",
        "no table of output",
        "other values",
        "floats",
        "booleans",
        "bytes",
        "a column of floats",
        "counts",
        "remembers",
    ],
)
def test_a_function_that_cannot_be_used_is_told(
    text: str, name: str, why: str, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (shop / "mine.py").write_text(text)
    assert main([history(shop, 2, 4), "--function", f"{shop / 'mine.py'}:{name}", *HELD]) == 2
    said = capsys.readouterr().err
    assert f"{shop / 'mine.py'}:{name}: " in said
    assert why in said
    assert "FUNCTION_INVALID" in said


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("shop.py", "FILE.py:NAME"),
        ("missing.py:f", "there is no file missing.py"),
        (f"{'m' * 300}.py:f", "there is no file mmm"),
        ("run.jsonl:f", "no Python file"),
    ],
)
def test_a_file_that_is_none_is_told(
    named: str, why: str, shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop)
    assert main([history(shop, 2, 4), "--function", named, *HELD]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("chosen", "lacking"),
    [
        (["--function", "shop.py:doubled"], "--inputs, --outputs"),
        (["--function", "shop.py:doubled", "--inputs", ",", "--outputs", "out-0"], "--inputs"),
        (["--inputs", "in-0", "--outputs", "out-0"], "--function"),
        (["--group", "copy"], "--function, --inputs, --outputs"),
        (["--inputs", ","], "--function, --inputs, --outputs"),
    ],
)
def test_what_says_only_a_half_is_a_mistake(
    chosen: list[str], lacking: str, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([history(shop, 2, 4), *chosen])
    assert ended.value.code == 2
    assert f"without {lacking} output is held against nothing" in capsys.readouterr().err
