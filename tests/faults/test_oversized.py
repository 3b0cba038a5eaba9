"""An input becomes a record larger than its topic accepts: the pipeline stops and names it; the limit raised, nothing is lost."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from kafka.errors import MessageSizeTooLargeError
from tests.topic_limits import LIMIT, limit_batches

from onceflow.verify.faults import limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.conftest import Workbench

pytestmark = pytest.mark.faults

RECORDS = [(f"k{number % 5}", str(number)) for number in range(60)]
BIG = ("k-big", "big")


def swollen(lines: DataFrame) -> DataFrame:
    """The input is small; what the pipeline makes of it is not, and does not compress."""
    return lines.selectExpr(
        "key",
        "case when value = 'big' then concat('big', repeat(uuid(), 1000)) else cast(value as string) end as value",
        "topic as _topic",
        "partition as _partition",
        "offset as _offset",
    )


def test_nothing_is_lost_once_the_limit_is_raised(bench: Workbench) -> None:
    source, target = bench.topic(2), bench.topic(2, config={LIMIT: "20000"})
    sink = {"compression": "none"}

    def run() -> None:
        bench.run(source, target, sink, transform=swollen)

    def written() -> Counter[str]:
        """By the values' beginnings; fails when a transaction is still open."""
        return Counter((m.value() or b"")[:3].decode() for m in bench.read(target))

    bench.fill(source, RECORDS[:30])
    run()
    bench.fill(source, [*RECORDS[30:], BIG])
    for _ in range(2):  # a second start changes nothing
        with pytest.raises(
            Exception, match=rf"(?s)RECORD_TOO_LARGE.*{target}-\d.*from source {source}-\d at offset \d+"
        ):
            run()
        assert written() == Counter(value for _, value in RECORDS[:30])
    limit_batches(bench.broker.bootstrap_servers, target, 1_000_000)
    run()
    assert written() == Counter(value for _, value in [*RECORDS, BIG])


def test_what_kafkas_own_clients_say_of_such_a_record_is_known_to_the_fault(spark: SparkSession) -> None:
    """``record-too-large`` waits until a driver has failed of it, and tells that by what Kafka says in Java, and by its names."""
    context: Any = spark.sparkContext
    error = context._jvm.org.apache.kafka.common.protocol.Errors.MESSAGE_TOO_LARGE
    for said in (error.message(), error.exception().toString(), error.name(), MessageSizeTooLargeError.__name__):
        assert any(word in said for word in limits._REFUSALS), said
