"""The idempotent writer: events into Kafka from an ordinary Python service, once each, in order, or all or nothing."""
