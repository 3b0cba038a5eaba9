"""The README says that the docstring of ``KafkaSink`` lists every option."""

from __future__ import annotations

import inspect

from onceflow.transaction.compression import Codec
from onceflow.transaction.guarantee import Guarantee
from onceflow.transaction.progress import OnMismatch
from onceflow.transaction.sink import KafkaSink


def test_every_option_of_the_sink_is_in_its_docstring() -> None:
    options = set(inspect.signature(KafkaSink).parameters) - {"topic", "name", "bootstrap_servers"}  # in its first line
    choices = [*(each.value for each in [*Guarantee, *OnMismatch]), *(codec.name.lower() for codec in Codec)]
    assert [each for each in [*sorted(options), *choices] if f"``{each}``" not in (KafkaSink.__doc__ or "")] == []
