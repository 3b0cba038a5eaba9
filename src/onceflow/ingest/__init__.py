"""Resumable ingest: files and tables into a topic, each row exactly once."""
