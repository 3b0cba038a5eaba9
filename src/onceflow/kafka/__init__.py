"""Talking to a Kafka cluster: requests, error codes, settings, administration."""
