"""What is said of topics that do not exist: short, however many others there are."""

from __future__ import annotations

from onceflow.ingest.positions import positions_topic
from onceflow.kafka.missing import meant
from onceflow.transaction.questions import ANCHOR_TOPIC

MANY = [f"team-{number:03d}" for number in range(500)]


def test_the_closest_come_first_and_the_others_are_counted() -> None:
    said = meant(["order"], [*MANY, "orders", "orders.dlq", "__consumer_offsets"])
    assert said.startswith("did you mean orders")
    assert said.endswith("other topics: team-000, team-001, team-002, team-003, team-004 and 495 more")
    assert "__" not in said


def test_case_is_no_difference() -> None:
    assert meant(["ORDERS"], ["orders"]) == "did you mean orders?"
    assert meant(["orders"], ["Orders", "ORDERS"]) == "did you mean ORDERS or Orders?"


def test_nothing_is_close() -> None:
    assert meant(["x"], ["orders", "shops"]) == "topics: orders, shops"
    assert meant(["x"], ["__consumer_offsets"]) == "there are no topics yet"


def test_onceflows_own_are_never_meant() -> None:
    own = [ANCHOR_TOPIC, positions_topic("ingest", "progress"), positions_topic("outbox", "shop")]
    assert meant(["progres"], own) == "there are no topics yet"
    assert meant(["onceflow-progres"], [*own, "onceflow-orders"]) == "did you mean onceflow-orders?"


def test_several_that_are_missing_have_each_their_own() -> None:
    said = meant(["order", "shop"], ["orders", "shops", "tills"])
    assert said == "did you mean orders or shops? other topics: tills"
