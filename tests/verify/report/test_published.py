"""What is published under ``docs/verification``: the pages, and what is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.verify.report.pages import Page
from tests.verify.report.published import PUBLISHED, README, drawn, runs, times, written

NO_WORK_OF_ITS_OWN = {"kill-standby"}  # the pipeline's work goes on beside it


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.html")), ids=lambda path: path.stem)
def test_a_page_links_only_to_what_stands_beside_it(path: Path) -> None:
    links = [each["href"] for each in Page.at(path).named("a") if not each["href"].startswith("#")]
    assert [link for link in links if not (PUBLISHED / link).exists()] == []


def test_the_tables_say_what_the_pages_say() -> None:
    page = README.read_text(encoding="utf-8")
    assert page == written(page), "make them anew: python -m tests.verify.report.published"


def test_no_run_that_is_published_has_found_anything_in_ours() -> None:
    assert [(told.name, told.found) for told in runs() if told.found] == []


@pytest.mark.parametrize("kind", drawn())
def test_each_kind_of_fault_has_met_work_in_some_run(kind: str) -> None:
    injected, met = (sum(of) for of in zip(*(times(kind, version) for version in "12"), strict=True))
    assert injected
    assert met or kind in NO_WORK_OF_ITS_OWN
