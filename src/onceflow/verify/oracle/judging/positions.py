"""What the pipeline's group has committed: what each batch gave it, what was seen of that meanwhile, and what at the end.

The progress is a position, too: of the anchor, and its offset is the next batch. A batch gives it in one transaction with the
ends of its ranges, so whoever sees the one must see the others (``torn_progress``)::

    batch 6    committed: progress 7, offset 100 of in-0
    batch 7    its offsets are committed beside its transaction
    a look     progress 7, offset 150 of in-0                         there is no batch of which that is so
    batch 7    is committed: progress 8, offset 150 of in-0           at the end all is well

All looks stand behind all batches, for nobody wrote down when each batch was committed. So of a look it is judged whether what it
saw was together, and that somebody gave it; of the last one, the observer's, also whether it is what the last batch gave.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.transaction.questions import ANCHOR_PARTITION, ANCHOR_TOPIC
from onceflow.verify.history import Kind
from onceflow.verify.history.coding import Ints, among, dense, plain_numbers
from onceflow.verify.oracle.expected import Expected
from onceflow.verify.oracle.judging.batches import Batches, finished_for_nothing
from onceflow.verify.oracle.judging.book import Book, Lanes, choice, kinds
from onceflow.verify.oracle.judging.logged import Logged, states
from onceflow.verify.recording.recorded import Recorded
from onceflow.verify.recording.tables import of_topics

WATCHER, LEADER = "watcher", "log of the group"
_CLAIM = -1
_NO_QUERY = ""  # of the progress that a claim commits, before any batch


def add_commits(book: Book, recorded: Recorded, expected: Expected, batches: Batches, lanes: Lanes) -> Ints:
    """A transaction for each committed batch, and before all of them the claim of the name, which gives progress 0.

    Returns the lanes that are given positions: the anchor's, and those of the input.
    A partition of which nothing is committed stands at 0; so all of them do at the claim. A batch that Spark calls finished had
    to be committed, so there is one for that, too.
    """
    batch, lane, offset = batches.given()
    committed = np.arange(_CLAIM, batches.next_batch or 0)
    finished = finished_for_nothing(recorded, expected)
    if finished is not None:
        committed = np.append(committed, finished)
    anchor, begins = _anchor(lanes), np.unique(lane)
    number = np.concatenate([np.full(len(begins), _CLAIM), batch, committed]) - _CLAIM
    order = np.argsort(number, kind="stable")
    _add(
        book,
        recorded,
        recorded.pipeline,
        number[order],
        np.concatenate([begins, lane, np.full(len(committed), anchor)])[order],
        np.concatenate([np.zeros(len(begins), np.int64), offset, committed + 1])[order],
        in_transactions=True,
    )
    return np.append(begins, anchor)


def add_looks(book: Book, recorded: Recorded, expected: Expected, known: Ints, lanes: Lanes) -> None:
    """An operation for each look at the group while the run went on, at the progress of this checkpoint's query, or the claim's.

    The first one is only what the others come after: when it began no history says.
    """
    looks = of_queries(recorded.progress, expected.query_id, _NO_QUERY)
    looks = of_topics(looks, (*recorded.inputs, ANCHOR_TOPIC))
    seen = dense(plain_numbers(looks["look"])), lanes.of(looks), plain_numbers(looks["offset"])
    _add_seen(book, recorded, WATCHER, seen, known)


def add_states(book: Book, recorded: Recorded, expected: Expected, logged: Logged, known: Ints, lanes: Lanes) -> None:
    """The same as the log tells it: an operation for each change of where the group stood.

    No watcher sees what stands there for a moment::

        transaction 1    the offsets of batch 7
        transaction 2    its progress                  0.1 s later: between the two, progress 7 with offsets of batch 7
    """
    _add_seen(book, recorded, LEADER, states(logged, recorded, expected.query_id, lanes), known)


def _add_seen(book: Book, recorded: Recorded, process: str, seen: tuple[Ints, Ints, Ints], known: Ints) -> None:
    """Looks, each with the lanes that it saw, and at 0 on the ``known`` ones that it did not."""
    look, lane, offset = seen
    at, absent = _absent(look, lane, known)
    look, lane = np.concatenate([look, at]), np.concatenate([lane, absent])
    offset = np.concatenate([offset, np.zeros(len(at), np.int64)])
    order = np.argsort(look, kind="stable")
    _add(book, recorded, process, look[order], lane[order], offset[order])


def judged_looks(looks: pa.Table, query_id: str) -> pa.Table:
    """Those at the progress of this query that are judged: not the first one of all, if it is one of them (``add_looks``)."""
    first = pc.min(of_queries(looks, query_id, _NO_QUERY)["look"])
    own = of_queries(looks, query_id)
    return own.filter(pc.greater(own["look"], first))


def of_queries(looks: pa.Table, *queries: str) -> pa.Table:
    """The looks (``tables.PROGRESS``) at the progress of these queries."""
    return looks.filter(pc.is_in(looks["query"].cast(pa.string()), pa.array(queries, pa.string())))


def _absent(look: Ints, lane: Ints, known: Ints) -> tuple[Ints, Ints]:
    """Of each look the known lanes of which it has no position: pairs of look and lane."""
    count, width = int(look.max(initial=-1)) + 1, int(max(lane.max(initial=-1), known.max(initial=-1))) + 1
    both = (np.arange(count)[:, None] * width + known[None, :]).ravel()
    missing = both[~among(both, look * width + lane)]
    return missing // max(width, 1), missing % max(width, 1)


def add_last_look(book: Book, recorded: Recorded, known: Ints, lanes: Lanes, observer: str) -> None:
    """Where the group stands at the end; at 0 on the ``known`` lanes on which it has no position."""
    committed = recorded.observed.committed
    seen = {lanes.number(*at): offset for at, offset in committed.offsets.items() if at[0] in recorded.inputs}
    if len(known) and committed.progress is not None:
        seen = {**dict.fromkeys(known.tolist(), 0), _anchor(lanes): committed.progress.next_batch, **seen}
    lane, offset = (np.asarray(list(each), np.int64) for each in (seen.keys(), seen.values()))
    _add(book, recorded, observer, np.zeros(len(lane), np.int64), lane, offset)


def _anchor(lanes: Lanes) -> int:
    return lanes.number(ANCHOR_TOPIC, ANCHOR_PARTITION)


def _add(
    book: Book,
    recorded: Recorded,
    process: str,
    op: Ints,
    lane: Ints,
    offset: Ints,
    *,
    in_transactions: bool = False,
) -> None:
    """Positions of the pipeline's group, by operation; each of those is a transaction, or none is."""
    count = len(op)
    book.add(
        op=op,
        process=process,
        kind=kinds(Kind.POSITION, count),
        txn=op if in_transactions else None,
        lane=lane,
        offset=offset,
        group=choice(np.zeros(count, np.int64), [recorded.pipeline]),
    )
