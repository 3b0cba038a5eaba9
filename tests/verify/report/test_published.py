"""What is published under ``docs/verification`` leads nowhere else than to what is published with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.verify.report.pages import Page

PUBLISHED = Path(__file__).parents[3] / "docs" / "verification"


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.html")), ids=lambda path: path.stem)
def test_a_page_links_only_to_what_stands_beside_it(path: Path) -> None:
    links = [each["href"] for each in Page.at(path).named("a") if not each["href"].startswith("#")]
    assert [link for link in links if not (PUBLISHED / link).exists()] == []
