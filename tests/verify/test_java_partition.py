"""The judge's own way from a key to its partition: Kafka's, by Kafka's own vectors and classes, and production's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference_murmur2

from onceflow.transaction.partitioner import partition_for_keys
from onceflow.verify.java_partition import java_partition, java_partitions, murmur2

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = st.lists(st.binary(max_size=40), max_size=60)
COUNTS = st.integers(1, 2000)


@pytest.mark.parametrize(
    ("key", "java"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_as_kafka_s_own_test_has_it(key: bytes, java: int) -> None:
    """org.apache.kafka.common.utils.UtilsTest.testMurmur2."""
    assert murmur2(key) == java % 2**32


@given(KEYS, COUNTS)
def test_one_key_and_many_are_the_same_and_another_client_s(keys: list[bytes], count: int) -> None:
    alone = [java_partition(key, count) for key in keys]
    assert java_partitions(keys, count) == alone
    assert alone == [(reference_murmur2(key) & 0x7FFFFFFF) % count for key in keys]


@given(KEYS, COUNTS)
def test_production_agrees(keys: list[bytes], count: int) -> None:
    assert partition_for_keys(pa.array(keys, pa.binary()), count).tolist() == java_partitions(keys, count)


def test_java_s_producer_agrees(spark: SparkSession) -> None:
    """Every length of a tail, and octets that Java reads as negative numbers."""
    jvm: Any = spark._jvm
    java = jvm.org.apache.kafka.clients.producer.internals.BuiltInPartitioner
    keys = [
        bytes((first + 37 * place) % 256 for place in range(length)) for length in range(14) for first in (0, 127, 200)
    ]
    for count in (1, 6, 1000):
        assert java_partitions(keys, count) == [java.partitionForKey(bytearray(key), count) for key in keys]
