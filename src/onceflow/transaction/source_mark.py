"""What is kept with the progress of the source offsets beside it, so that nobody resumes from offsets that do not fit. Pure.

What it survives::

    the source offsets expire (offsets.retention.minutes), the progress does not, because each start claims it anew: a pipeline
    that fails at each start for a week; or somebody deletes the offsets (kafka-consumer-groups --delete-offsets), or a topic
    a resume must not take that for partitions that were added since, and read those from the beginning: all is written twice

    two readings of one partition end a batch at different offsets: two sources with other limits, or the branches of a plan,
    which Spark asks for their ends one after the other, while records arrive
    one offset cannot tell both; the lower one is committed, and a resume from there writes again what lies between

    the offsets of a topic that is not read any more stand beside the others
    the newest batch's have a note, its digest (questions.py); only those are compared

    a name runs exactly once, and then at least once, which commits newer offsets without a note, and no progress
    they are all there, and are another output's than the progress: whoever would go on exactly once is told that, and not that
    they are gone

    the progress was written by an older onceflow
    nothing is known, so nothing is refused, unless there are no offsets at all

    the progress is gone: its topic, which holds no record, was deleted; the offsets are still there, or some of them
    so the note beside them says the same as the progress; each of them has to vouch, for nobody knows which is the newest
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from onceflow.transaction.progress import Progress, SourceOffsets, digest_of

_DIFFERENT = "different"


def mark_of(offsets: SourceOffsets, *, agree: bool) -> str:
    """What ``Progress.sources`` says of the ``offsets`` that are committed with it.

    ``agree``: no two readings of a partition end at different offsets.
    """
    return _digest(offsets) if agree else _DIFFERENT


def with_topics(mark: str, topics: str) -> str:
    """The mark, with a digest of the ids of the topics (source_topics.py); as it is where they have none."""
    return f"{mark} {topics}".rstrip()


def _of_offsets(mark: str) -> str:
    return mark.partition(" ")[0]


def topics_of(mark: str) -> str:
    """The digest of the ids of the topics; empty where it is not known."""
    return mark.partition(" ")[2]


def note_of(progress: Progress) -> str:
    """Stands beside each source offset: which batch has committed it, and the mark of all that it has committed with it."""
    return f"{progress.ends[-1]} {_of_offsets(progress.sources)}".rstrip() if progress.ends else ""


def is_of_newest(note: str, progress: Progress) -> bool:
    """Whether the newest batch has left the note; an older onceflow has noted no mark."""
    return bool(progress.ends) and note.partition(" ")[0] == progress.ends[-1]


def why_not_resumed(
    progress: Progress | None,
    offsets: SourceOffsets,
    newest: Collection[tuple[str, int]],
    plain: Collection[tuple[str, int]] = (),
    notes: Mapping[tuple[str, int], str] = MappingProxyType({}),
) -> str:
    """Why the committed ``offsets`` do not tell where the committed output ends; empty if they do.

    ``newest``: those that the newest batch committed; ``plain``: those that were committed without progress; ``notes``: what
    stands beside them.
    """
    if progress is None or not progress.query_id:
        return _why_notes_do_not_vouch(offsets, notes)
    mark = _of_offsets(progress.sources)
    found = {at: offsets[at] for at in newest}
    if _digest(found) == mark if mark else offsets:
        return ""
    last = progress.next_batch - 1
    if plain and not newest:
        return (
            f"newer source offsets than those of batch {last}, the last one committed with its progress, were committed without "
            "(at_least_once, kafka-consumer-groups --reset-offsets): they tell where that ended, and not where the output of the "
            "batch did. `onceflow status` shows them"
        )
    if mark == _DIFFERENT:
        return f"in batch {last}, the last one committed, {_TWO_READINGS}"
    return f"batches up to {last} are committed, but the source offsets next to them are {_NOT_ALL}"


_TWO_READINGS = (
    "two readings of one partition (two sources, or two branches of the plan) had got to different offsets: one committed offset "
    "cannot tell both"
)
_NOT_ALL = "gone, or not all there (offsets.retention.minutes, a topic that was deleted, kafka-consumer-groups --delete-offsets)"


def _why_notes_do_not_vouch(offsets: SourceOffsets, notes: Mapping[tuple[str, int], str]) -> str:
    by_note: dict[str, dict[tuple[str, int], int]] = {}
    for at, note in notes.items():
        by_note.setdefault(note, {})[at] = offsets[at]
    marked = [(note.partition(" ")[2], found) for note, found in by_note.items() if " " in note]
    if any(mark == _DIFFERENT for mark, _ in marked):
        return f"the progress is gone, and when it was last committed {_TWO_READINGS}"
    if any(mark != _digest(found) for mark, found in marked):
        return f"the progress is gone, and the source offsets that were committed with it are {_NOT_ALL}"
    return ""


NOT_RESUMED = (
    "where each reading ended stands in the old checkpoint, in the newest file of offsets/. With that checkpoint: run the plan "
    "as it was until its input rests, then resume. Without it: give starting_offsets (startingOffsets) and restart"
)
"""What to do then."""


def _digest(offsets: SourceOffsets) -> str:
    return digest_of([[*at, offset] for at, offset in sorted(offsets.items())])
