"""Sets of numbers, beside NumPy's own, which hashes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.verify.history.coding import Ints, among, distinct

FAR = 1 << 62
numbers = st.lists(st.integers(-1, 20) | st.sampled_from([-FAR, FAR, FAR + 1]) | st.integers(-FAR, FAR)).map(
    lambda some: np.array(some, np.int64)
)


@given(numbers)
def test_distinct_is_each_once_in_order(some: Ints) -> None:
    assert distinct(some).tolist() == sorted(set(some.tolist()))


@given(numbers, numbers)
def test_among_is_whether_it_is_one_of_them(some: Ints, chosen: Ints) -> None:
    assert among(some, np.concatenate([chosen, some[::2]])).tolist() == [
        each in {*chosen.tolist(), *some[::2].tolist()} for each in some.tolist()
    ]


@pytest.mark.parametrize("chosen", [range(5), (0, FAR)], ids=["close together", "far apart"])
def test_what_is_not_chosen_is_not_among_them(chosen: tuple[int, ...]) -> None:
    asked = np.array([-FAR, -1, 0, 3, FAR - 1, FAR, FAR + 1])
    assert among(asked, np.array(chosen)).tolist() == [each in chosen for each in asked.tolist()]
