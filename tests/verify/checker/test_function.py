"""Output held against a function that stands in a file, by the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceflow.verify.checker.__main__ import main
from onceflow.verify.history import Recorder, read_history, write_history
from onceflow.verify.history.recorder import poll, position, send, window

DOUBLED = """
from prices import FACTOR

def doubled(key, offset, value):
    yield key.replace("in", "out"), value * FACTOR
"""
COLUMNAR = """
from onceflow.verify.checker import expand

doubled = expand({"in-0": "out-0", "in-1": "out-1"}, times=2)
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
    recorder.add("probe", position("in-0", 2, "copy"))
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
        (["--inputs", "in-*,stock-*", "--outputs", "out-0"], "the history has no key stock-*"),
        (["--inputs", "in-0", "--outputs", "out-0, out-7"], "the history has no key out-7"),
        (["--inputs", "in-0", "--outputs", "out-0", "--group", "other"], "the history has no group other"),
        (["--inputs", "in-0", "--outputs", "out-*"], "nobody looked at out-2"),
    ],
)
def test_names_of_nothing_prove_nothing(
    chosen: list[str], why: str, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (shop / "nothing.py").write_text("def nothing(key, offset, value):\n    return ()")
    file = history(shop)
    function = ["--function", f"{shop / 'nothing.py'}:nothing"]
    assert main([file, *function, *chosen]) == 2
    assert f"nothing is proved: {why}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        (DOUBLED, "halved", "the file has no halved"),
        (DOUBLED, "FACTOR", "FACTOR is no function"),
        ("raise OSError('no prices')", "f", "the file cannot be run: OSError: no prices"),
        ("def f(one, two):\n    pass", "f", "but (one, two)"),
        ("def f(key, offset, value):\n    return 1 / 0", "f", "it failed: ZeroDivisionError"),
        ("def f(key, offset, value):\n    return [value]", "f", "it failed: TypeError"),
        ("def f(records):\n    return records", "f", "a table with the columns input, key and value"),
        ("def f(key, offset, value):\n    yield 'out-0', 'one'", "f", "it failed: ArrowInvalid"),
    ],
    ids=["none", "no function", "raises", "parameters", "fails", "no pairs", "no table of output", "other values"],
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
    [("shop.py", "FILE.py:NAME"), ("missing.py:f", "there is no file missing.py"), ("run.jsonl:f", "no Python file")],
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
    ],
)
def test_what_says_only_a_half_is_a_mistake(
    chosen: list[str], lacking: str, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([history(shop, 2, 4), *chosen])
    assert ended.value.code == 2
    assert f"without {lacking} output is held against nothing" in capsys.readouterr().err
