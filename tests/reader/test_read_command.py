"""``onceflow read`` on the real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from confluent_kafka import Producer
from tests.reader.conftest import Places
from tests.reader.support import TIMEOUT_S, Place


def read(place: Place, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "onceflow.cli", "read", place.topic, "-b", place.servers, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    *lines, end = done.stdout.split("\n")  # splitlines() takes more than that for the end of a line
    assert end == ""
    return lines


def test_events_with_their_positions_ids_and_keys(places: Places) -> None:
    place = places(2)
    place.send(["10", "11", "12"])
    assert read(place) == ["0@0\ttests 10\tkey 10\t10", "0@1\ttests 12\tkey 12\t12", "1@0\ttests 11\tkey 11\t11"]


def test_as_json_one_object_per_event(place: Place) -> None:
    place.send(["7"], sequence=True)
    (event,) = map(json.loads, read(place, "--json"))
    assert event.pop("timestamp_ms") > 0
    assert dict(event.pop("headers"))["ce_id"] == "7"
    assert event == {
        "topic": place.topic,
        "partition": 0,
        "offset": 0,
        "source": "tests",
        "id": "7",
        "sequence": 7,
        "key": "key 7",
        "value": "7",
    }


def test_a_null_is_no_text_and_no_character_breaks_a_line_or_a_column(place: Place) -> None:
    producer = Producer({"bootstrap.servers": place.servers})
    for key, value in [(None, None), ("", ""), ("\\N", "None"), ("a\tb\\n", "c\nd\r\x1b[2J\x85\u2028é")]:
        producer.produce(place.topic, value, key)
    assert producer.flush(TIMEOUT_S) == 0
    assert read(place) == [
        "0@0\t\t\\N\t\\N",
        "0@1\t\t\t",
        "0@2\t\t\\\\N\tNone",
        "0@3\t\ta\\tb\\\\n\tc\\nd\\r\\x1b[2J\\x85\\u2028é",
    ]
    shown = [(event["key"], event["value"]) for event in map(json.loads, read(place, "--json"))]
    assert shown == [(None, None), ("", ""), ("\\N", "None"), ("a\tb\\n", "c\nd\r\x1b[2J\x85\u2028é")]


def test_bytes_that_are_no_text_are_whole_in_json(place: Place) -> None:
    """What a line, or a text of JSON, shows of them is not what they are."""
    producer = Producer({"bootstrap.servers": place.servers})
    for key, value in [(b"\xff\x00", b"text"), (b"key", b"\x80\x81"), (b"key", "é".encode())]:
        producer.produce(place.topic, value, key)
    assert producer.flush(TIMEOUT_S) == 0
    events = list(map(json.loads, read(place, "--json")))
    assert [(event.get("key_base64"), event.get("value_base64")) for event in events] == [
        ("/wA=", None),
        (None, "gIE="),
        (None, None),
    ]
    assert [(event["key"], event["value"]) for event in events] == [
        ("\ufffd\x00", "text"),
        ("key", "\ufffd\ufffd"),
        ("key", "é"),
    ]


def test_a_topic_that_is_nearly_named_is_suggested(place: Place) -> None:
    command = [sys.executable, "-m", "onceflow.cli", "read", place.topic.upper(), "-b", place.servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 1
    assert f"did you mean {place.topic}" in done.stderr


def test_filters(places: Places) -> None:
    place = places(2)
    place.send(range(20))
    assert [line.split("\t")[3] for line in read(place, "--id", "7")] == ["7"]
    assert [line.split("\t")[3] for line in read(place, "--key", "key 8")] == ["8"]
    assert [line.split("\t")[3] for line in read(place, "--contains", "4")] == ["4", "14"]
    assert read(place, "--source", "other") == []
    assert len(read(place, "--partition", "1")) == 10
    assert len(read(place, "--limit", "3")) == 3


def test_what_is_not_committed_is_not_shown(place: Place) -> None:
    place.send(["1"])
    producer = Producer({"bootstrap.servers": place.servers, "transactional.id": place.group})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(place.topic, "aborted")
    assert producer.flush(TIMEOUT_S) == 0
    producer.abort_transaction(TIMEOUT_S)
    assert read(place) == ["0@0\ttests 1\tkey 1\t1"]


@contextmanager
def following(place: Place) -> Iterator[IO[str]]:
    """The lines of a command that follows, and has shown the first of two events; it must end behind the second."""
    place.send(["1"])
    command = [sys.executable, "-m", "onceflow.cli", "read", place.topic, "-b", place.servers, "--follow", "-n", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().endswith("\t1\n")
            yield process.stdout
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()


def test_following_shows_what_comes_later(place: Place) -> None:
    with following(place) as lines:
        place.send(["2"])
        assert lines.readline().endswith("\t2\n")


def test_following_shows_a_partition_that_the_topic_gets_meanwhile(place: Place) -> None:
    with following(place) as lines:
        place.add_partition()
        place.send(["2"], partition=1)
        assert lines.readline().startswith("1@0\t")


def test_mistakes_on_the_command_line_are_named(place: Place) -> None:
    command = [
        sys.executable,
        "-m",
        "onceflow.cli",
        "read",
        place.topic,
        "-b",
        place.servers,
        "--kafka",
        "a",
        "--kafka",
        "b",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 2
    assert "--kafka a" in done.stderr
    assert "--kafka b" in done.stderr
