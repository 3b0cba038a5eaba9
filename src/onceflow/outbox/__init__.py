"""The outbox relay: rows that services insert in their own transactions become records, each exactly once."""
