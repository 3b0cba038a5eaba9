"""Which batches the driver writes itself."""

from __future__ import annotations

from onceflow.transaction.writing import SizeEstimate


def test_the_first_guess_goes_by_rows_and_what_is_not_known_goes_to_executors() -> None:
    estimate = SizeEstimate(limit_bytes=250_000)
    assert estimate.fits_driver(1000)
    assert not estimate.fits_driver(1001)
    assert not estimate.fits_driver(None)


def test_a_batch_that_outgrew_the_driver_sends_only_such_to_executors() -> None:
    """A backlog was too large; the small batches behind it are the driver's again."""
    estimate = SizeEstimate(limit_bytes=1 << 20)
    estimate.outgrown(4000)
    assert not estimate.fits_driver(4000)
    assert not estimate.fits_driver(2001)
    assert estimate.fits_driver(2000)
    estimate.learn(2000, 2_000_000)
    assert not estimate.fits_driver(2000)


def test_what_outgrows_the_driver_again_is_halved_again() -> None:
    estimate = SizeEstimate(limit_bytes=1 << 20)
    estimate.outgrown(4000)
    estimate.outgrown(2000)
    assert not estimate.fits_driver(2000)
    assert estimate.fits_driver(1000)
    estimate.outgrown(100_000)
    assert estimate.fits_driver(1000), "a larger one says nothing of it"
    assert not estimate.fits_driver(1001)
