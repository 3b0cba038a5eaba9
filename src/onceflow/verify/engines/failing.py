"""How an engine says that it ends with an error."""

from __future__ import annotations

from onceflow.errors import ConfigurationError, InputError, OnceflowError, SetupError, UnsafeSession
from onceflow.verify.engines.lines import Message, Told

_LASTING = (ConfigurationError, SetupError, InputError, UnsafeSession)  # what only the user can mend


def failure(error: Exception) -> Message:
    """Its last word."""
    code = error.code if isinstance(error, OnceflowError) else type(error).__name__
    return Message(Told.FAILED, code=code, error=str(error) or code, lasting=isinstance(error, _LASTING))
