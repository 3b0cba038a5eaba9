"""Kafka's own transaction matrix: every broker, or the client, bounced hard or clean, under both transaction versions.

What Kafka's system test ``transactions_test.py`` does to a client that copies a topic transactionally is done here to a pipeline,
with the workload, the readers, the oracle and the checker of every other verification.
"""
