"""Faults that a verification injects, see ``catalog``."""
