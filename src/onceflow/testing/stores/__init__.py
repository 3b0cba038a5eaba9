"""The conformance kit of deduplication stores: what ``reader/stores/interface.py`` promises, as checks on a real store."""

from __future__ import annotations

from onceflow.testing.stores import claims, compact, expiry, fencing, identity, positions, units
from onceflow.testing.stores.subject import StoreCheck, StoreSubject

STORE_CHECKS: tuple[StoreCheck, ...] = tuple(
    StoreCheck(function)
    for module in (identity, positions, fencing, units, claims, expiry, compact)
    for function in module.CHECKS
)
"""Every check. One that needs a capability which the store does not declare passes without a word."""


def check_store(subject: StoreSubject) -> None:
    """Runs every check; raises one ExceptionGroup of all that failed, each with the check's name as a note."""
    failures: list[Exception] = []
    for check in STORE_CHECKS:
        try:
            check(subject)
        except Exception as error:  # noqa: BLE001 (all failures at once)
            error.add_note(f"in the check {check}: {check.function.__doc__}")
            failures.append(error)
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(STORE_CHECKS)} checks failed", failures)
