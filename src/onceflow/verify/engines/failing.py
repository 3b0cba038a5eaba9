"""How an engine says that it ends with an error."""

from __future__ import annotations

from onceflow import errors
from onceflow.errors import ConfigurationError, InputError, OnceflowError, SetupError, UnsafeSession
from onceflow.verify.engines.lines import Message, Told

_LASTING = (ConfigurationError, SetupError, InputError, UnsafeSession)  # what only the user can mend

_STUCK = "Stuck"  # so a driver gives itself up whose rehearsal does not end, on a machine with too much to do, say

_ERRORS = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OnceflowError)}
_CODES = {_STUCK, *(kind.code for kind in _ERRORS)}


def is_foreseen(code: str) -> bool:
    """Whether it is the code of one of onceflow's errors, or that of a rehearsal that does not end; else the code ran into a
    mistake in itself, or ended without a word.
    """
    return code in _CODES


def failure(error: Exception) -> Message:
    """Its last word."""
    code = error.code if isinstance(error, OnceflowError) else type(error).__name__
    return Message(Told.FAILED, code=code, error=str(error) or code, lasting=isinstance(error, _LASTING))
