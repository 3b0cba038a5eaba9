"""Settings that would fail only when they are used, a minute after the start or at the first dead letter, are refused at once."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer

import onceflow
from onceflow.errors import ConfigurationError
from onceflow.reader.dead_letters import DeadLetters
from onceflow.reader.settings import _MOST
from onceflow.reader.stores import open_store
from onceflow.reader.stores.interface import EventKey, Standing
from onceflow.stop_flag import StopFlag

INFINITE = float("inf")
LARGEST: dict[str, Any] = {name: most for name, (most, _) in _MOST.items()}


@pytest.mark.parametrize(
    "wrong",
    [
        {"keep_ids_s": INFINITE},
        {"keep_ids_s": 1e12},
        {"keep_ids": 10**30},
        {"lease_s": INFINITE},
        {"patience_s": INFINITE},
        {"patience_s": 25 * 24 * 3600},
        {"backoff_s": INFINITE},
        {"backoff_max_s": INFINITE},
        {"max_poll_interval_s": INFINITE},
        {"session_timeout_s": 3601, "max_poll_interval_s": 3601},
        {"batch_size": 1_000_001},
    ],
    ids=str,
)
def test_too_much_is_refused_with_the_bound(wrong: dict[str, Any]) -> None:
    (name, value), *_ = wrong.items()
    with pytest.raises(ConfigurationError) as raised:
        onceflow.Reader("t", group="g", store="memory:", **wrong)
    (mistake,) = raised.value.fields["mistakes"]
    assert mistake.startswith(f"{name} must be at most {LARGEST[name]} (")
    assert mistake.endswith(f"not {value!r}")


def test_all_of_it_is_named_at_once() -> None:
    wrong = {name: 10 * most for name, most in LARGEST.items()}
    with pytest.raises(ConfigurationError) as raised:
        onceflow.Reader("t", group="g", store="memory:", **wrong)
    assert len(raised.value.fields["mistakes"]) == len(wrong)


def test_the_largest_can_be_told_to_every_store_and_client(store_url: str) -> None:
    reader = onceflow.Reader("t", group="g", store="memory:", bootstrap_servers="127.0.0.1:1", **LARGEST)
    settings = reader._settings
    with closing(open_store(store_url)) as store:
        store.open("bounds", settings.retention)
        (ownership,) = store.take("t", [0], "tests")
        keys = [EventKey(0, "s", "1")]
        assert store.claim(ownership, keys, settings.lease_s) == [Standing.NEW]
        store.confirm(ownership, keys)
        assert store.forget_expired() == 0
    consumer = Consumer({**settings.consumer_options(), "log_level": 0})
    consumer.close()
    letters = DeadLetters(settings, StopFlag())
    letters._open()
    letters.close()
