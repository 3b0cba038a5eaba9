"""Whoever is asked to end cleans up first; an error in that must not make a run that has failed of one that was ended.

::

    Ctrl-C      SystemExit, in the middle of a fault; every ``finally`` is gone through
    cleaning    a broker that is gone cannot be ended in order: that error takes the place of the SystemExit
    the run     takes it for its failure, and the next engine begins, deaf to any further Ctrl-C
"""

from __future__ import annotations


def raise_if_interrupted(error: BaseException) -> None:
    """Raises the SystemExit, or KeyboardInterrupt, in whose wake ``error`` was raised, if there is one."""
    before = error.__context__
    while before is not None:
        if isinstance(before, SystemExit | KeyboardInterrupt):
            raise before
        before = before.__context__
