"""The idempotent reader: exactly-once effects from committed events."""
