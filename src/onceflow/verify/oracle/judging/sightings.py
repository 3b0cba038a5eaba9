"""What readers saw, each record with the value that it has in the history.

Input records are named by their own id; output records by the expected record that they are: ``topic-partition/batch/ordinal``.
What is neither is ``unexpected:<digest>``, which nobody wrote. Without an expectation equal records are no repetition, so that
each has its place for a name: ``unjudged:<digest>@<partition>:<offset>``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.checker.unproved import UNJUDGED
from onceflow.verify.history.coding import Ints, dense, plain_numbers
from onceflow.verify.oracle.expected import Expected
from onceflow.verify.oracle.judging.book import Lanes, flat
from onceflow.verify.oracle.judging.matching import NOTHING, Found, Mask, Wanted, match
from onceflow.verify.recording.recorded import Recorded
from onceflow.verify.recording.tables import is_of_topics

_TOPIC_WIDE = 1 << 40  # added to the number of a topic where the partition of a record is free


@dataclass(frozen=True, slots=True)
class Sightings:
    """Records of one table of reads, in its order; ``value`` as in the history.

    ``batch`` is the number of the batch that has written it; NOTHING where that is not known: of what is no output, or not
    expected, where batch ends are not known, and where a record of another batch may be the one that was seen.
    """

    op: Ints
    lane: Ints
    offset: Ints
    value: pa.Array
    batch: Ints


@dataclass(frozen=True, slots=True)
class Wrote:
    """Each expected record: its value, the partition that it belongs to, and where it was found (offset NOTHING: nowhere).

    ``guessed``: another one of the same content, of another batch, may be the one that was found there.
    """

    value: pa.Array
    own_lane: Ints
    lane: Ints
    offset: Ints
    guessed: Mask


def sightings(recorded: Recorded, expected: Expected | None, lanes: Lanes) -> tuple[Sightings, Sightings, Wrote]:
    """What the final reader and the concurrent reader saw, and what became of the expected records."""
    tables = [recorded.final, recorded.seen]
    reads = pa.concat_tables(table.unify_dictionaries() for table in tables).unify_dictionaries()
    lane, offset = lanes.of(reads), plain_numbers(reads["offset"])
    ids = reads["id"].combine_chunks()
    digests = pc.binary_join_element_wise("unexpected", _hexadecimal(reads["content"]), ":")
    value = pc.coalesce(ids, digests)
    is_output = np.asarray(is_of_topics(reads, recorded.outputs))
    none = np.empty(0, np.int64)
    wrote = Wrote(pa.array([], pa.string()), none, none, none, none.astype(bool))
    outputs = reads.filter(pa.array(is_output))
    batch = np.full(len(reads), NOTHING)
    if expected is None or expected.refused:
        named = _unjudged(outputs)
    else:
        named, batch[is_output], wrote = _named(outputs, lane[is_output], expected, recorded, lanes)
    value = pc.replace_with_mask(value, pa.array(is_output), named)
    op, first = plain_numbers(reads["op"]), len(recorded.final)
    final = Sightings(op[:first], lane[:first], offset[:first], value[:first], batch[:first])
    return final, Sightings(op[first:], lane[first:], offset[first:], value[first:], batch[first:]), wrote


def _named(
    reads: pa.Table, lane: Ints, expected: Expected, recorded: Recorded, lanes: Lanes
) -> tuple[pa.Array, Ints, Wrote]:
    """The values and the batches of reads of output topics."""
    offset, content = plain_numbers(reads["offset"]), _plain(reads["content"])
    order = np.lexsort((content, offset, lane))
    new = np.ones(len(order), bool)
    new[1:] = np.any([np.diff(each[order]) != 0 for each in (lane, offset, content)], axis=0)
    each = order[new]  # one read of every record: place and content
    inverse = np.empty(len(order), np.int64)
    inverse[order] = np.cumsum(new) - 1
    wanted_lane, found_lane = _match_lanes(expected, reads.take(pa.array(each)), lane[each], recorded, lanes)
    batch, wanted_content = plain_numbers(expected.records["batch"]), _plain(expected.records["content"])
    wanted = Wanted(wanted_lane, wanted_content, batch, wanted_lane >= _TOPIC_WIDE)
    matching = match(wanted, Found(found_lane, content[each], lane[each], offset[each]))
    names = expected_values(expected)
    digests = pc.binary_join_element_wise("unexpected", _hexadecimal(reads["content"]), ":")
    values = pc.coalesce(names.take(_or_null(matching.wanted[inverse])), digests.combine_chunks())
    known = np.where(matching.guessed | expected.whole, NOTHING, batch)
    found = matching.found_by(len(names))
    where = np.append(lane[each], NOTHING)[found]
    there = np.append(offset[each], NOTHING)[found]
    own = lanes.of(_placed(expected.records))
    wrote = Wrote(names, own, np.where(found == NOTHING, own, where), there, matching.guessed)
    return values, np.append(known, NOTHING)[matching.wanted[inverse]], wrote


def _unjudged(reads: pa.Table) -> pa.Array:
    """The values of reads of output topics where nothing is known of what should be there."""
    at = pc.binary_join_element_wise(_text(reads["partition"]), _text(reads["offset"]), ":")
    digests = pc.binary_join_element_wise(UNJUDGED, _hexadecimal(reads["content"]), ":")
    return flat(pc.binary_join_element_wise(digests, at, "@"))


def expected_values(expected: Expected) -> pa.Array:
    """The name of each expected record."""
    records = expected.records
    place = pc.binary_join_element_wise(records["topic"].cast(pa.string()), _text(records["partition"]), "-")
    named = pc.binary_join_element_wise(place, _text(records["batch"]), _text(records["ordinal"]), "/")
    return flat(named)


def _match_lanes(
    expected: Expected, reads: pa.Table, lane: Ints, recorded: Recorded, lanes: Lanes
) -> tuple[Ints, Ints]:
    """Where expected and seen records are compared: on their partition, or on their topic where the partition is free.

    Free are records without a key (where the plan does not name the partition), and all records of a topic that got
    partitions while the run went on: which count a key was placed by is not known. And what equals a free record of its topic,
    for nobody can tell which of both was seen::

        expected   x on any partition, x on partition 0, a on partition 0
        seen       x on partition 0, x on partition 1, a on partition 0     either x; but a must be there
    """
    records, count = expected.records, len(expected.records)
    topics = {name: number for number, name in enumerate(recorded.outputs)}
    topic = np.concatenate([_topic_lane(each["topic"], topics) for each in (records, reads)])
    contents = np.concatenate([_plain(each["content"]) for each in (records, reads)])
    different, content = np.unique(contents, return_inverse=True)
    same = dense(topic) * (len(different) + 1) + content  # one number for each topic and content
    free = np.flatnonzero(plain_numbers(records["partition"]) < 0)
    grown = [number + _TOPIC_WIDE for name, number in topics.items() if name in recorded.grown]
    wide = np.isin(topic, grown) | np.isin(same, same[free])
    compared = np.where(wide, topic, np.concatenate([lanes.of(_placed(records)), lane]))
    return compared[:count], compared[count:]


def _topic_lane(topic: pa.ChunkedArray, numbers: dict[str, int]) -> Ints:
    known = pa.array(list(numbers), pa.string())
    return plain_numbers(pc.index_in(topic.cast(pa.string()), known)) + _TOPIC_WIDE


def _placed(records: pa.Table) -> pa.Table:
    """With partition 0 for a free one: some place must stand in the history for what is missing."""
    partition = pc.max_element_wise(records["partition"], pa.scalar(0, pa.int32()))
    return records.set_column(records.schema.get_field_index("partition"), "partition", partition)


def _plain(digests: pa.ChunkedArray) -> Ints:
    return np.asarray(digests.combine_chunks())


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.string())


def _hexadecimal(digests: pa.ChunkedArray) -> pa.ChunkedArray:
    """As 16 digits; only few are needed, so a plain loop over the different ones does."""
    coded = digests.combine_chunks().dictionary_encode()
    words = pa.array([f"{each & 0xFFFFFFFFFFFFFFFF:016x}" for each in coded.dictionary.to_pylist()], pa.string())
    return pa.chunked_array([pa.DictionaryArray.from_arrays(coded.indices, words).cast(pa.string())])


def _or_null(rows: Ints) -> pa.Array:
    return pa.array(rows, mask=rows < 0)
