"""What readers made of the output: the effects that were meant, and those that are there.

One is meant for each committed record that stands in the output, by the name that the record has in the history; the effects that
are there have the names of their records as well. So what the pipeline writes twice has two effects, and that is one too many::

    output    paid-0 at offset 3 and at 9 is one expected record         duplicated
    readers   an effect of offset 3, and one of 9                        effect_repeated: a reader goes by place, and cannot know

An effect of what is not in the output, or of another content than stands there, is one that nobody was to have (``phantom``).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.checker.evidence import place
from onceflow.verify.history import Kind
from onceflow.verify.history.coding import plain_numbers
from onceflow.verify.oracle.judging.book import Book, Lanes, flat, kinds
from onceflow.verify.oracle.judging.sightings import Sightings
from onceflow.verify.recording.recorded import Recorded

READERS, LEDGER = "effect readers", "ledger"
_NOTHING = "nothing"


def add_effects(book: Book, recorded: Recorded, effects: pa.Table, final: Sightings, lanes: Lanes) -> None:
    """Of each topic of the output two operations: what its readers were to do, and what is found done: all of it, if all was
    ``handled``.
    """
    named = flat(final.value)
    value = _names(effects, recorded.final, replace(final, value=named), lanes)
    topic, final_topic = effects["topic"].cast(pa.string()), recorded.final["topic"].cast(pa.string())
    for name in recorded.outputs:
        target = lanes.target(f"effects of {name}")
        meant = named.filter(flat(pc.equal(final_topic, name)))
        found = value.filter(flat(pc.equal(topic, name)))
        _add(book, READERS, Kind.SEND, target, meant)
        # A target is known by an effect and by who was to have it, whether or not there is any.
        _add(book, READERS, Kind.SEND, target, pa.array([_NOTHING]), status="fail")
        _add(book, LEDGER, Kind.EFFECT, target, pa.array([_NOTHING]), status="fail")
        _add(book, LEDGER, Kind.EFFECT, target, found, is_all=recorded.handled)


def _add(
    book: Book, process: str, kind: Kind, target: int, value: pa.Array, *, status: str = "ok", is_all: bool = False
) -> None:
    """One operation with a row for each value; ``is_all``: these are all that are there."""
    windows, rows = int(is_all), len(value)
    zeros, none = np.zeros(windows + rows, np.int64), np.full(rows, -1, np.int64)
    book.add(
        op=zeros,
        process=process,
        kind=np.concatenate([kinds(Kind.WINDOW, windows), kinds(kind, rows)]),
        status=status,
        lane=zeros + target,
        offset=np.concatenate([np.zeros(windows, np.int64), none]),
        until=np.concatenate([np.full(windows, rows + 1, np.int64), none]),
        value=pa.concat_arrays([pa.nulls(windows, pa.string()), value.cast(pa.string())]),
    )


def _names(effects: pa.Table, reads: pa.Table, final: Sightings, lanes: Lanes) -> pa.Array:
    """For each effect the name of the record at its place, if that has the content that was handled."""
    handled = place(lanes.of(effects), plain_numbers(effects["offset"]))
    read = place(final.lane, final.offset)
    order = np.argsort(read, kind="stable")
    at = np.append(order, -1)[np.searchsorted(read[order], handled)]
    content = plain_numbers(effects["content"])
    known = (at >= 0) & (np.append(read, -1)[at] == handled)
    known &= np.append(plain_numbers(reads["content"]), 0)[at] == content
    names = final.value.take(pa.array(at, mask=~known))
    rows = np.flatnonzero(~known)
    others = effects.take(pa.array(rows)).to_pylist()
    unexpected = [f"unexpected: offset {each['offset']} of {each['topic']}-{each['partition']}" for each in others]
    return pc.replace_with_mask(names, pa.array(~known), pa.array(unexpected, pa.string()))
