"""What went wrong, in one text for the report."""

from __future__ import annotations

from onceflow.errors import OnceflowError


def explained(error: Exception) -> str:
    """An error of ours says enough; of any other its type tells more than its text."""
    return str(error) if isinstance(error, OnceflowError) else f"{type(error).__name__}: {error}"
