"""Circles in a graph of millions of edges that has hardly any.

In the order of completion nearly all edges go forward, and every circle contains one that goes back. A circle lies wholly
inside the ranges that its backward edges span: going up past a point outside of them it could never come down again. So
only what lies in those ranges is searched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from onceflow.verify.checker.ranges import Ranges
from onceflow.verify.history.coding import Ints


def cycles_in(source: Ints, target: Ints, order: Ints) -> Iterator[list[int]]:
    """Circles that share no vertex, each as the numbers of its edges; at least one of every knot of circles.

    ``source`` and ``target`` are the vertices of each edge; ``order`` is a number for each vertex that most edges ascend.
    """
    start, end = order[source], order[target]
    back = start >= end
    spans = Ranges.of(end[back], start[back] + 1)
    span = spans.index(start)
    inside = np.flatnonzero((span >= 0) & (span == spans.index(end)))
    graph = _Graph(inside, source[inside], target[inside])
    while (circle := graph.take_circle()) is not None:
        yield circle


class _Graph:
    """Edges by vertex; vertices that no circle can pass through are removed."""

    def __init__(self, edges: Ints, source: Ints, target: Ints) -> None:
        self._out: dict[int, dict[int, int]] = defaultdict(dict)  # vertex -> next vertex -> edge
        self._in: dict[int, set[int]] = defaultdict(set)
        self._path: list[int] = []  # the walk, as far as its vertices are still there
        self._place: dict[int, int] = {}  # of each of them in it
        for edge, a, b in zip(edges.tolist(), source.tolist(), target.tolist(), strict=True):
            self._out[a].setdefault(b, edge)
            self._in[b].add(a)
        self._remove([v for v in {*self._out, *self._in} if not self._on_a_path(v)])

    def take_circle(self) -> list[int] | None:
        """The edges of one circle, whose vertices are then removed; None when there is none. The walk goes on where it was."""
        if not self._out:
            return None
        vertex = next(iter(self._out[self._path[-1]] if self._path else self._out))
        while vertex not in self._place:  # every vertex left has a next one, so the walk must come back to itself
            self._place[vertex] = len(self._path)
            self._path.append(vertex)
            vertex = next(iter(self._out[vertex]))
        circle = self._path[self._place[vertex] :]
        edges = [self._out[a][b] for a, b in zip(circle, [*circle[1:], circle[0]], strict=True)]
        self._remove(circle)
        return edges

    def _on_a_path(self, vertex: int) -> bool:
        return bool(self._out.get(vertex)) and bool(self._in.get(vertex))

    def _remove(self, vertices: list[int]) -> None:
        """Removes these, and whatever has no way in or no way out without them."""
        queue = list(vertices)
        while queue:
            vertex = queue.pop()
            self._go_back_before(vertex)
            after, before = self._out.pop(vertex, {}), self._in.pop(vertex, set())
            for other in after:
                self._in.get(other, set()).discard(vertex)
            for other in before:
                self._out.get(other, {}).pop(vertex, None)
            queue.extend(other for other in (*after, *before) if not self._on_a_path(other))

    def _go_back_before(self, vertex: int) -> None:
        while vertex in self._place:
            del self._place[self._path.pop()]
