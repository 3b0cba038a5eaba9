from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from tests.verify.checker.world import World

from onceflow.verify.checker import CHECKS
from onceflow.verify.checker.__main__ import main
from onceflow.verify.history import Recorder, read_history, write_history
from onceflow.verify.history.recorder import Row, effect, log_end, poll, position, send, stable_end, window

DOCUMENTED = (Path(__file__).parents[3] / "docs" / "history-format.md").read_text()


Done = subprocess.CompletedProcess[str]


def bad(directory: Path) -> Path:
    recorder = Recorder()
    recorder.add("writer", send("k", 1, 0), send("k", 2, 1), send("k", 3, 2))
    recorder.add("reader", poll("k", 0, 1), poll("k", 2, 3))
    write_history(recorder.table(), directory / "bad.jsonl")
    return directory / "bad.jsonl"


def test_a_good_history_is_good(tmp_path: Path) -> None:
    write_history(World(5).run(200), tmp_path / "good.parquet")
    command = [sys.executable, "-m", "onceflow.verify.checker", str(tmp_path / "good.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(name in done.stdout for name in CHECKS)


def test_a_violation_is_shown_and_its_smallest_history_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(bad(tmp_path)), "--json", "--keep", str(tmp_path / "kept")]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["good"] is False
    assert {name: count for name, count in report["counts"].items() if count} == {"lost": 1}
    (example,) = report["examples"]
    assert (example["key"], example["offset"], example["value"]) == ("k", 1, 2)
    assert example["rows"] == [
        {"row": 1, "op": 0, "process": "writer", "kind": "send", "status": "ok", "key": "k", "offset": 1, "value": 2}
    ]
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["lost.jsonl"]
    smallest = read_history(tmp_path / "kept" / "lost.jsonl").to_pylist()
    assert [(row["kind"], row["value"]) for row in smallest] == [("send", 2), ("poll", 1), ("poll", 3)]


def test_a_violation_is_shown_to_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(bad(tmp_path))]) == 1
    assert "'process': 'writer'" in capsys.readouterr().out


@pytest.mark.parametrize(("rows", "why"), [(0, "the history is empty"), (1, "nobody looked")])
def test_a_history_in_which_nobody_looked_proves_nothing(
    rows: int, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder()
    for number in range(rows):
        recorder.add("writer", send("k", number, number))
    write_history(recorder.table(), tmp_path / "unseen.jsonl")
    assert main([str(tmp_path / "unseen.jsonl")]) == 2
    assert f"nothing is proved: {why}" in capsys.readouterr().out
    assert main([str(tmp_path / "unseen.jsonl"), "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert report["good"] is False
    assert report["unproved"].startswith(why)


@pytest.mark.parametrize(
    ("rows", "status"),
    [
        ([window("k", 0, 4)], "fail"),
        ([window("k", 0, 4)], "info"),
        ([window("j", 0, 4)], "ok"),
        ([window("k", 0, 0)], "ok"),
        ([effect("accounts", 1)], "fail"),
        ([poll("k", 0, 1)], "fail"),
        ([poll("k", 0, 1)], "info"),
        ([poll("j", 0, 1)], "ok"),
    ],
    ids=[
        "failed",
        "not answered",
        "elsewhere",
        "nowhere",
        "a failed effect",
        "a failed poll",
        "a poll of unknown outcome",
        "a poll elsewhere",
    ],
)
def test_a_look_that_can_have_seen_nothing_is_none(
    rows: list[Row], status: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder()
    recorder.add("writer", send("k", 1, 0))
    recorder.add("reader", *rows, status=status)
    write_history(recorder.table(), tmp_path / "unseen.jsonl")
    assert main([str(tmp_path / "unseen.jsonl")]) == 2
    assert "nothing is proved: nobody looked where anybody wrote" in " ".join(capsys.readouterr().out.split())


def test_ends_that_were_asked_for_before_anything_was_written_are_no_look(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.add("probe", log_end("k", 0), stable_end("k", 0))
    recorder.add("writer", send("k", 1, 0))
    recorder.add("reader", window("j", 0, 1))
    write_history(recorder.table(), tmp_path / "unseen.jsonl")
    assert main([str(tmp_path / "unseen.jsonl")]) == 2


def test_a_look_that_finds_nothing_where_nothing_may_be_proves_something(tmp_path: Path) -> None:
    """Also that of a transaction of unknown outcome, once the position that it gave was seen: it was committed."""
    recorder = Recorder()
    recorder.add("writer", send("k", 1), status="fail")
    recorder.add("probe", position("k", 0, "copy"))
    recorder.add("copier", window("k", 0, 4), position("k", 4, "copy"), status="info", txn=1)
    write_history(recorder.table(), tmp_path / "unknown.jsonl")
    assert main([str(tmp_path / "unknown.jsonl")]) == 2
    recorder.add("probe", position("k", 4, "copy"))
    write_history(recorder.table(), tmp_path / "proved.jsonl")
    assert main([str(tmp_path / "proved.jsonl")]) == 0


UNJUDGED_VALUES = [f"unjudged:{7:016x}@0:{offset}" for offset in range(2)]


def test_output_that_was_not_judged_proves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One content at two places: a repetition, perhaps, and the names hide it."""
    recorder = Recorder()
    recorder.add("writer", send("in-0", "source 0", 0))
    recorder.add("reader", window("in-0", 0, 1), poll("in-0", 0, "source 0"))
    reads = [poll("out-0", offset, value) for offset, value in enumerate(UNJUDGED_VALUES)]
    recorder.add("reader", window("out-0", 0, 2), *reads)
    write_history(recorder.table(), tmp_path / "unjudged.parquet")
    assert main([str(tmp_path / "unjudged.parquet")]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "nothing is proved: output was not judged" in said
    assert "(2 of 3 records that were read, on out-0)" in said
    recorder.add("reader", window("in-0", 0, 1))
    write_history(recorder.table(), tmp_path / "lost.parquet")
    assert main([str(tmp_path / "lost.parquet")]) == 1  # what is certain stays certain


@pytest.mark.parametrize("group", ["copy", None])
def test_input_that_was_consumed_without_any_output_proves_nothing(
    group: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What came of it nobody looked at. Who consumes for no group only reads."""
    recorder = Recorder()
    recorder.add("writer", send("in-0", 1, 0))
    recorder.add("copier", poll("in-0", 0, 1, group), txn=1)
    recorder.add("other", poll("in-0", 0, 1), txn=2)
    recorder.add("final reader", window("in-0", 0, 1), poll("in-0", 0, 1))
    write_history(recorder.table(), tmp_path / "unseen.jsonl")
    assert main([str(tmp_path / "unseen.jsonl")]) == (2 if group else 0)
    assert ("nobody looked at output: of what was consumed for copy" in capsys.readouterr().out) == bool(group)


@pytest.mark.parametrize(
    ("rows", "txn"),
    [
        ([window("out-0", 0, 1)], None),
        ([poll("out-0", 0, 2)], None),
        ([effect("accounts", 1)], None),
        ([send("in-0", 2)], 1),
    ],
    ids=["looked", "read", "effect", "sent to the input itself"],
)
def test_whatever_came_of_input_is_output(rows: list[Row], txn: int | None, tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.add("writer", send("in-0", 1, 0))
    recorder.add("copier", poll("in-0", 0, 1, "copy"), txn=1)
    recorder.add("copier", *rows, txn=txn)
    write_history(recorder.table(), tmp_path / "seen.jsonl")
    assert main([str(tmp_path / "seen.jsonl")]) == 0


def test_parts_that_were_not_judged_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    recorder.add("writer", send("k", 1, 0), send("k", 2, 1))
    recorder.add("reader", window("k", 0, 1), poll("k", 0, 1))
    write_history(recorder.table(), tmp_path / "half.jsonl")
    assert main([str(tmp_path / "half.jsonl")]) == 0
    assert "not judged: 1 record that was committed on k: nobody read it" in " ".join(capsys.readouterr().out.split())
    assert main([str(tmp_path / "half.jsonl"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["good"] is True
    assert [part.split(":")[0] for part in report["not_judged"]] == ["1 record that was committed on k"]


@pytest.mark.parametrize("output", ["ok", "fail"])
def test_committed_records_of_a_key_at_which_nobody_looked_prove_nothing(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The input was read; what became of it stands on a key of its own, if anything does."""
    recorder = Recorder()
    recorder.add("writer", send("in", 1, 0))
    recorder.add("copier", send("out", 1), send("out", 2), txn=1, status=output)
    recorder.add("reader", window("in", 0, 1), poll("in", 0, 1))
    write_history(recorder.table(), tmp_path / "unseen.jsonl")
    assert main([str(tmp_path / "unseen.jsonl")]) == (2 if output == "ok" else 0)
    told = " ".join(capsys.readouterr().out.split())
    assert ("nothing is proved: nobody looked at out, where 2 committed records stand" in told) == (output == "ok")


def test_a_violation_stays_one_though_nobody_looked(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.add("writer", send("k", 1, 0))
    recorder.add("observer", log_end("k", 5), stable_end("k", 0))
    write_history(recorder.table(), tmp_path / "hung.jsonl")
    assert main([str(tmp_path / "hung.jsonl")]) == 1


@pytest.mark.parametrize("place", ["there", "there/below"])
def test_a_file_where_histories_are_to_be_kept_is_told_before_anything_is_checked(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        main([str(bad(tmp_path)), "--keep", str(tmp_path / place)])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert f"--keep {tmp_path / place}: {tmp_path / 'there'} is a file, not a directory" in said.err
    assert said.out == ""


@pytest.mark.parametrize("name", ["missing.parquet", "wrong.jsonl"])
def test_a_file_that_cannot_be_read_is_no_verdict(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.jsonl").write_text("{}\n{")
    assert main([str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert name in said
    assert "HISTORY_INVALID" in said


@pytest.mark.parametrize("ending", [".parquet", ".arrow", ".jsonl", ""])
@pytest.mark.parametrize("length", [300, 5000])
def test_a_name_that_is_too_long_is_no_fault_of_the_checker(
    length: int, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["h" * length + ending]) == 2
    said = capsys.readouterr().err
    assert "HISTORY_INVALID" in said
    assert "it cannot be read: File name too long" in said
    assert "the checker failed" not in said


def foreign(directory: Path) -> Path:
    """A good history with signs that not every locale has, in a key and so in a part that is not judged."""
    recorder = Recorder()
    recorder.add("writer", send("é-0", "☃", 0), send("é-0", "☂", 1))
    recorder.add("reader", window("é-0", 0, 1), poll("é-0", 0, "☃"))
    write_history(recorder.table(), directory / "foreign.jsonl")
    return directory / "foreign.jsonl"


def command(arguments: list[str], stdout: int | IO[str] = subprocess.PIPE, **variables: str) -> Done:
    """The command in a process of its own, with these variables of the environment."""
    run = [sys.executable, "-m", "onceflow.verify.checker", *arguments]
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LC_", "LANG", "PYTHONIO", "PYTHONUN"))
    }
    return subprocess.run(
        run, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=120, env={**plain, **variables}
    )


NARROW = [
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "ascii"},
]


@pytest.mark.parametrize("variables", NARROW, ids=["locale", "streams"])
def test_any_locale_carries_what_is_printed(variables: dict[str, str], tmp_path: Path) -> None:
    path = str(foreign(tmp_path))
    done = command([path], subprocess.PIPE, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"committed on \xe9-0" in done.stdout
    done = command([path, "--json"], subprocess.PIPE, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert "committed on é-0" in json.loads(done.stdout)["not_judged"][0]


def test_signs_that_the_stream_has_stay_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(foreign(tmp_path)), "--json"]) == 0
    assert "committed on é-0" in capsys.readouterr().out


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_report_that_cannot_be_written_is_no_verdict(form: list[str], tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = command([str(bad(tmp_path)), *form], stdout=full)
    assert done.returncode == 2
    assert "nothing is proved: the report cannot be written: No space left on device." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_report_that_nobody_reads_is_no_verdict(form: list[str], tmp_path: Path) -> None:
    """As behind ``| head``, where it has ended."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as nobody:
        done = command([str(bad(tmp_path)), *form], stdout=nobody)
    assert done.returncode == 2
    assert "nothing is proved: the report cannot be written: Broken pipe." in done.stderr
    assert "Traceback" not in done.stderr


def test_a_fault_of_the_checker_is_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("onceflow.verify.checker.__main__.check_history", broken)
    assert main([str(bad(tmp_path))]) == 2
    said = capsys.readouterr().err
    assert "in broken" in said  # where it was
    assert "nothing is proved: the checker failed, ZeroDivisionError: a fault. What to do: report it" in said


def test_every_anomaly_is_documented() -> None:
    for name in (*CHECKS, "diverged_output"):
        assert f"| `{name}` |" in DOCUMENTED, name
