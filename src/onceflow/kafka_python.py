"""What we use of kafka-python, for all of us to import from here.

Hazard::

    python -W error; import onceflow; onceflow.Writer
    kafka-python reads its message schemas as it is imported, by functions that Python 3.11 and 3.12 call deprecated: the
    warning, which is none of the user's, would end the import

So this one is passed over, here alone; every other one is shown, or is an error, as the user has chosen.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", r"(read_text|open_text) is deprecated", DeprecationWarning)
    from kafka import errors
    from kafka.errors import SaslAuthenticationFailedError, UnsupportedSaslMechanismError
    from kafka.net.inet import KafkaNetSocket
    from kafka.net.manager import KafkaConnectionManager
    from kafka.net.selector import NetworkSelector
    from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
    from kafka.protocol.admin import (
        AlterPartitionReassignmentsRequest,
        CreateTopicsRequest,
        DescribeConfigsRequest,
        DescribeGroupsRequest,
        DescribeProducersRequest,
        DescribeProducersResponse,
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
        ElectLeadersRequest,
        ListPartitionReassignmentsRequest,
    )
    from kafka.protocol.consumer import FetchRequest, OffsetCommitRequest, OffsetFetchRequest, OffsetFetchResponse
    from kafka.protocol.metadata import ApiVersionsRequest, CoordinatorType, FindCoordinatorRequest, MetadataRequest
    from kafka.protocol.producer import (
        AddOffsetsToTxnRequest,
        AddOffsetsToTxnResponse,
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnResponse,
        EndTxnRequest,
        EndTxnResponse,
        InitProducerIdRequest,
        InitProducerIdResponse,
        ProduceRequest,
        ProduceResponse,
        TxnOffsetCommitRequest,
        TxnOffsetCommitResponse,
    )
    from kafka.record import MemoryRecords

__all__ = [
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "AlterPartitionReassignmentsRequest",
    "ApiVersionsRequest",
    "CoordinatorType",
    "CreateTopicsRequest",
    "DescribeConfigsRequest",
    "DescribeGroupsRequest",
    "DescribeProducersRequest",
    "DescribeProducersResponse",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
    "ElectLeadersRequest",
    "EndTxnRequest",
    "EndTxnResponse",
    "FetchRequest",
    "FindCoordinatorRequest",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "KafkaConnectionManager",
    "KafkaNetSocket",
    "KafkaSSLTransport",
    "KafkaTCPTransport",
    "ListPartitionReassignmentsRequest",
    "MemoryRecords",
    "MetadataRequest",
    "NetworkSelector",
    "OffsetCommitRequest",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "ProduceRequest",
    "ProduceResponse",
    "SaslAuthenticationFailedError",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
    "UnsupportedSaslMechanismError",
    "errors",
]
