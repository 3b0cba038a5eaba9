"""For those who extend onceflow: conformance kits that a part of your own can run.

A deduplication store of your own, under pytest::

    import pytest
    from onceflow.testing import STORE_CHECKS, StoreCheck, StoreSubject

    @pytest.mark.parametrize("check", STORE_CHECKS, ids=str)
    def test_conformance(check: StoreCheck) -> None:
        check(StoreSubject(make=lambda: MyStore("…"), effects=MyEffects()))

or without it: ``check_store(subject)`` runs all of them and raises one error that names every check that failed.
"""

from __future__ import annotations

from onceflow.testing.stores import STORE_CHECKS, check_store
from onceflow.testing.stores.subject import Effects, StoreCheck, StoreSubject

__all__ = ["STORE_CHECKS", "Effects", "StoreCheck", "StoreSubject", "check_store"]
