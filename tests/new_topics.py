"""Topics that a test makes, on a machine that is busy."""

from __future__ import annotations

import time

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

_LOOK_AGAIN_S = 0.1


def create(admin: AdminClient, new: NewTopic, timeout_s: float) -> None:
    """Makes the topic. A broker that stood still for seconds is missing for a moment::

    the broker has no processor for 3 s    the controller takes it for gone
    it goes on                             a topic is to be made: there are no brokers for its replicas
    it is heard of again
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            made = admin.create_topics([new], operation_timeout=timeout_s, request_timeout=2 * timeout_s)
            made[new.topic].result(3 * timeout_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR or time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_AGAIN_S)
        else:
            return
