"""How an engine says that it ends with an error."""

from __future__ import annotations

from onceflow import errors
from onceflow.errors import ConfigurationError, InputError, OnceflowError, SetupError, UnsafeSession
from onceflow.verify.engines.lines import Message, Told

_LASTING = (ConfigurationError, SetupError, InputError, UnsafeSession)  # what only the user can mend

_CODES = frozenset(
    kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OnceflowError)
)


def is_foreseen(code: str) -> bool:
    """Whether it is the code of one of onceflow's errors; else the code ran into a mistake in itself, or ended without a word."""
    return code in _CODES


def failure(error: Exception) -> Message:
    """Its last word."""
    code = error.code if isinstance(error, OnceflowError) else type(error).__name__
    return Message(Told.FAILED, code=code, error=str(error) or code, lasting=isinstance(error, _LASTING))
