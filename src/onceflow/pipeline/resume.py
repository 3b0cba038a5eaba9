"""Where a query begins when its checkpoint is lost or does not fit: at the committed offsets, or all over again.

``resume`` takes the source offsets that were committed together with the output, so nothing is lost and nothing
repeated; what aggregations and joins had remembered is gone with the checkpoint. ``restart`` begins at
``starting_offsets`` again, and writes again what was written before: on purpose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from onceflow.config import Plan, PlanFile
from onceflow.errors import ProgressConflict
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline.checkpoint import Checkpoint, CheckpointState
from onceflow.pipeline.early_fence import fenced
from onceflow.pipeline.events import Listener, Note
from onceflow.pipeline.topics import Partitions, topics_of
from onceflow.transaction.committed import EARLIEST
from onceflow.transaction.progress import OnMismatch, Progress, differ
from onceflow.transaction.questions import Committed
from onceflow.transaction.source_mark import NOT_RESUMED

Offsets = dict[str, dict[str, dict[str, int]]]


def prepare(
    file: PlanFile,
    mode: OnMismatch,
    checkpoint: Checkpoint,
    settings: ClusterSettings,
    known: Partitions,
    sources: Sequence[frozenset[str]],
    tell: Listener,
    read: Callable[[], Committed],
    begun: str = "",
) -> tuple[OnMismatch, Offsets]:
    """What the sink shall allow, and where sources start (by source name; empty: as the plan says).

    ``sources``: the topics of each of the plan's readings, in Spark's order; ``read`` says what is committed; ``begun`` is the
    query that a driver before, in the same mode, has begun and not committed. Sets the old checkpoint aside where a new one is
    needed. Raises ProgressConflict if the checkpoint is another plan's or damaged, if there is nothing to resume, or if a topic
    of the newest batch is not read any more: the sink would refuse that too, with the old checkpoint out of its place.
    """
    state = checkpoint.state()
    if mode is OnMismatch.REFUSE:
        _check_undamaged(checkpoint, state)
        _check_same_plan(file.plan, state, sources)
        _check_passes_over_nothing(file.plan, state, known, read)
        return _as_if_resumed(file.plan, state, read, tell), {}
    if _has_begun(state, begun):
        tell(Note(f"{mode.value}: goes on with the checkpoint that the driver before has begun"))
        # It counts only for a source of which that driver did not live to note where it begins.
        return mode, {} if mode is OnMismatch.RESTART else starting_offsets(file.plan, read(), known)
    if mode is OnMismatch.RESTART:
        _set_aside(file.plan, settings, checkpoint, mode, tell)
        tell(Note("restart: reads from starting_offsets again, what was written before is written again"))
        return mode, {}
    committed = read()
    progress = committed.progress
    is_known = progress is not None and bool(progress.query_id)
    if not is_known and not committed.offsets:
        raise ProgressConflict(
            f"nothing is committed under the name {file.plan.name!r}: there is nothing to resume",
            action=_without_resume(checkpoint, state),
        )
    if _fits(file.plan, state, progress, sources):
        tell(Note("the checkpoint continues the committed progress: there is nothing to resume, it simply goes on"))
        return OnMismatch.REFUSE, {}
    # Its offsets have no note, and the progress next to them is of when it ran exactly_once.
    at_least_once_since = file.plan.guarantee == "at_least_once" and committed.plain and not committed.newest
    if committed.why_not_resumed and not at_least_once_since:
        raise ProgressConflict(
            f"pipeline {file.plan.name!r} cannot resume: {committed.why_not_resumed}", action=NOT_RESUMED
        )
    left = _left(file.plan, frozenset(topic for topic, _ in committed.ends), sources)
    if left and is_known:
        raise ProgressConflict(
            f"pipeline {file.plan.name!r} cannot resume: it does not read {left} any more, as the newest batch did",
            action=_LEFT,
        )
    _set_aside(file.plan, settings, checkpoint, mode, tell)
    tell(Note("resume: reads from the committed offsets; aggregations and joins begin with an empty state"))
    _tell_of_new(committed, sources, tell)
    return mode, starting_offsets(file.plan, committed, known)


def _has_begun(state: CheckpointState | None, begun: str) -> bool:
    """Whether the checkpoint is the new one already, which the driver before has begun for the same resume or restart::

    told to restart, it sets the checkpoint aside; in the new one Spark notes where a source at "latest" begins
    records come, it plans a batch of them, and is killed before it can commit it
    set aside once more, a new query would begin behind those records, and nobody would ever write them
    """
    return begun != "" and state is not None and not state.damaged and state.query_id == begun


def _check_passes_over_nothing(
    plan: Plan, state: CheckpointState | None, known: Partitions, read: Callable[[], Committed]
) -> None:
    """At least once, a checkpoint in which nothing is planned begins where the plan says, and nothing compares that::

        a plan with starting_offsets = "latest" has committed offset 1000; its checkpoint is lost, or a --resume that set it aside
        did not live to note where the new one begins
        the service manager starts it: Spark begins at the end, 1500, and 1000 to 1499 are written by nobody

    From the earliest offset on it only repeats, which this guarantee allows.
    """
    if plan.guarantee != "at_least_once" or (state is not None and state.last_batch >= 0):
        return
    elsewhere = [source for source in plan.source if source.starting_offsets != "earliest"]
    committed = {topic for topic, _ in read().offsets} if elsewhere else set()
    later = [source.name for source in elsewhere if committed.intersection(topics_of(source, known))]
    if later:
        raise ProgressConflict(
            f"pipeline {plan.name!r} has committed source offsets, and a checkpoint without a batch that would go on from them: "
            f"from the starting_offsets of {', '.join(later)} on, what came since could be passed over",
            action="--resume goes on at the committed offsets; --restart begins at starting_offsets as they are then",
        )


def _as_if_resumed(
    plan: Plan, state: CheckpointState | None, read: Callable[[], Committed], tell: Listener
) -> OnMismatch:
    """RESUME for a name that has source offsets and no progress: its first batch has to begin at them, or the sink refuses it.

    What it survives::

        at_least_once has committed source offsets; the plan becomes exactly_once, and is resumed
        the old checkpoint is set aside, and the start ends before the new one notes where the sources begin (the principal has
        no right to the transactional id; Ctrl-C; a crash)
        the service manager starts it again, without --resume: by its progress the name is new, and all would be written again
    """
    if plan.guarantee == "at_least_once" or (state is not None and state.last_batch > 0):
        return OnMismatch.REFUSE
    committed = read()
    if not committed.offsets or (committed.progress is not None and committed.progress.query_id):
        return OnMismatch.REFUSE
    tell(
        Note(
            "source offsets are committed under this name, and no progress (it ran at_least_once, or a --resume did not get as "
            "far as its first batch): it goes on only if its checkpoint begins at them. --resume makes one that does; --restart "
            "reads from starting_offsets and writes again what was written"
        )
    )
    return OnMismatch.RESUME


def _check_undamaged(checkpoint: Checkpoint, state: CheckpointState | None) -> None:
    if state is not None and state.damaged:
        raise ProgressConflict(
            f"{checkpoint.location}/{state.damaged} is empty or damaged, as files are that were not synchronised before the "
            "power went: Spark cannot start on it",
            action=_mend_of(state.damaged) if state.can_be_mended else _DAMAGED,
        )


def _without_resume(checkpoint: Checkpoint, state: CheckpointState | None) -> str:
    if state is None or not state.damaged:
        return "run it without --resume"
    return _WHERE_IT_ENDED if checkpoint.has_finished or state.last_batch > 0 else _BEGIN_ANEW


def _mend_of(entry: str) -> str:
    directory, _, batch = entry.partition("/")
    return (
        f"remove {entry} and {directory}/.{batch}.crc: Spark runs batch {batch} again, if it has not planned the next; what is "
        "committed of it is not written again (but under at_least_once), and aggregations keep their state, if its files are "
        "whole. Or restore the checkpoint, or run with --resume: a new one begins at the committed offsets, and aggregations "
        "begin empty"
    )


def _check_same_plan(plan: Plan, state: CheckpointState | None, sources: Sequence[frozenset[str]]) -> None:
    if state is not None and state.sources not in (None, len(sources)):
        raise ProgressConflict(
            f"the checkpoint was written by a plan that reads its sources {state.sources} times (once for every branch "
            f"that ends in a sink), this one reads them {len(sources)} times",
            action=_LEFT if _left(plan, frozenset().union(*state.topics), sources) else _ANOTHER_PLAN,
        )
    if state is not None and _another_order(state, sources):
        raise ProgressConflict(
            "the checkpoint was written by a plan that reads the same topics in another order (that of the [[sink]] tables and "
            "of what they read); Spark knows a source by its place in that order",
            action=_ANOTHER_PLAN,
        )


_DAMAGED = (
    "restore the checkpoint; or run with --resume: a new one begins at the committed offsets, nothing is lost or repeated, and "
    "aggregations and joins begin empty"
)
_BEGIN_ANEW = (
    "run it with --restart: the checkpoint cannot be gone on with, and as nothing is committed nothing is written twice. From "
    'starting_offsets "latest" on it begins at the end as it is then: to lose nothing of what has come since, give the offsets'
)
_WHERE_IT_ENDED = (
    "look whether name and cluster are those that it ran with. If they are, the cluster has dropped what it had committed: "
    "restore the checkpoint, or run it with --restart and starting_offsets where its output ends, else all is written again"
)
_ANOTHER_PLAN = (
    "go back to the plan as it was, or run with --resume: a new checkpoint begins at the committed offsets, and aggregations "
    "begin empty"
)
_LEFT = (
    "go back to the plan as it was. Or, to read fewer topics from now on (or where one was deleted), give each source the "
    "committed offsets of its topics (onceflow status) as starting_offsets and run with --restart: nothing of them is lost or "
    "repeated, and aggregations begin empty"
)


def _left(plan: Plan, before: frozenset[str], sources: Sequence[frozenset[str]]) -> str:
    """The topics that were read before and are not any more, as text; at least once may do without them."""
    if plan.guarantee == "at_least_once":
        return ""
    return ", ".join(sorted(before - frozenset().union(*sources)))


def _tell_of_new(committed: Committed, sources: Sequence[frozenset[str]], tell: Listener) -> None:
    """A topic that has left the plan is new again when the cluster has dropped its offsets, and nobody can tell the two apart.

    ::

        the plan reads a and b, then (restarted) b alone, for longer than offsets.retention.minutes; then a and b again, resumed
    """
    new = frozenset().union(*sources) - {topic for topic, _ in committed.offsets}
    if new:
        tell(
            Note(
                f"nothing is committed of {', '.join(sorted(new))}: it counts as new and is read from starting_offsets (from the "
                "beginning, where its source has topics that are committed). If this pipeline has read it before, what was "
                "written then is written again: stop, and give starting_offsets where that ended"
            )
        )


def _another_order(state: CheckpointState, sources: Sequence[frozenset[str]]) -> bool:
    """Only where nothing else differs: a topic may join a source, and Spark itself tells of one that is missing."""
    return Counter(state.topics) == Counter(sources) and list(state.topics) != list(sources)


def _fits(
    plan: Plan, state: CheckpointState | None, progress: Progress | None, sources: Sequence[frozenset[str]]
) -> bool:
    """Whether the checkpoint that is there can simply go on.

    At least once has no progress record, and nothing that a checkpoint of the same plan could disagree with.
    """
    if state is None or state.damaged or _another_order(state, sources):
        return False
    if plan.guarantee == "at_least_once":
        return state.sources in (None, len(sources))
    return progress is not None and continues(state, progress, len(sources))


def continues(state: CheckpointState | None, progress: Progress, sources: int) -> bool:
    """Whether a checkpoint is this plan's and goes on where the progress ends, perhaps with the next batch planned.

    A batch is its offsets, not its id::

        the checkpoint is restored from a backup, one batch behind; a start plans that batch anew, and is refused
        by its id it is the newest one that is committed; a resume that found it to fit would be refused for ever

    The same where it has the same offsets by chance, and state depends on the time: of one that is planned again at another time
    who asks to resume is believed.
    """
    if state is None or state.query_id != progress.query_id or state.sources not in (None, sources):
        return False
    last = progress.next_batch - 1
    is_planned_again = differ(progress.planned_at(last), state.planned_ms.get(last))
    return (
        state.last_batch in (last, last + 1) and state.ends.get(last) == progress.end_of(last) and not is_planned_again
    )


def starting_offsets(plan: Plan, committed: Committed, known: Partitions) -> Offsets:
    """The committed offsets per source; a partition that is new since then starts at its beginning.

    A source of which nothing is committed is new in the plan, and starts where that says.
    """
    found: Offsets = {}
    for source in plan.source:
        topics = topics_of(source, known)
        if not {topic for topic, _ in committed.offsets} & set(topics):
            continue
        found[source.name] = {
            topic: {str(p): committed.offsets.get((topic, p), EARLIEST) for p in known.get(topic, ())}
            for topic in topics
        }
    return found


def _set_aside(plan: Plan, settings: ClusterSettings, checkpoint: Checkpoint, mode: OnMismatch, tell: Listener) -> None:
    """Fences first::

        a driver of this name is at work; the checkpoint is renamed under it, and it makes a directory of that name again with
        its next batch: files of the old query, without its id, which no new query takes
        not fenced, it goes on so, and each further attempt to begin anew meets them

    Fenced, it ends with the batch that it is at.
    """
    if plan.guarantee != "at_least_once" and not checkpoint.is_empty:
        with fenced(plan, settings):
            pass
    moved = checkpoint.set_aside(mode.value)
    if moved is not None:
        tell(Note(f"the old checkpoint is kept in {moved}"))
