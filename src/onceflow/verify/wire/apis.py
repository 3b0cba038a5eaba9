"""Kafka's API keys that a rule may name, and the groups of them that matter to the commit protocol."""

from __future__ import annotations

from collections.abc import Mapping

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
API_VERSIONS, CREATE_TOPICS, INIT_PRODUCER_ID = 18, 19, 22
ADD_PARTITIONS, ADD_OFFSETS, END_TXN, WRITE_TXN_MARKERS, TXN_OFFSET_COMMIT = 24, 25, 26, 27, 28
DESCRIBE_CONFIGS, DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS = 32, 61, 65

KINDS: Mapping[str, frozenset[int]] = {
    "INIT_PRODUCER_ID": frozenset({INIT_PRODUCER_ID}),
    "ADD_PARTITIONS": frozenset({ADD_PARTITIONS, ADD_OFFSETS}),
    "PRODUCE": frozenset({PRODUCE}),
    "TXN_OFFSET_COMMIT": frozenset({TXN_OFFSET_COMMIT}),
    "END_TXN": frozenset({END_TXN}),
    "DESCRIBE": frozenset({DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS}),
    "OFFSET_FETCH": frozenset({OFFSET_FETCH}),
    "FIND_COORDINATOR": frozenset({FIND_COORDINATOR}),
}
"""The requests of the commit protocol by the step that they make; ADD_PARTITIONS comes in transaction version 1 alone."""

READS: Mapping[str, frozenset[int]] = {
    "FETCH": frozenset({FETCH}),
    "LIST_OFFSETS": frozenset({LIST_OFFSETS}),
    "METADATA": frozenset({METADATA}),
}
"""The requests of whoever reads topics: the pipeline's source."""
