"""A page as its reader gets it: elements, texts and tables, by the parser of the standard library."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

EMPTY = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """What stands on a page. Elements that are not closed in order are a mistake."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.tables: list[list[list[str]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self._cells = 0
        self.feed(source)
        self.close()
        assert not self._open

    @classmethod
    def at(cls, path: Path) -> Page:
        return cls(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in EMPTY:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.texts.append(data)
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def rows(self, table: int) -> dict[str, list[str]]:
        """The rows of a table by their first cell."""
        return {" ".join(row[0].split()): [" ".join(cell.split()) for cell in row[1:]] for row in self.tables[table]}
