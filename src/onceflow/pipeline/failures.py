"""Why a query ended, in the words of onceflow's own errors instead of a Java stack trace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException, StreamingQueryException

from onceflow.errors import InputError, OnceflowError, ProgressConflict, QueryFailed, TopicMissing
from onceflow.pipeline.loops import find_loop
from onceflow.pipeline.malformed import find_malformed
from onceflow.pipeline.views import words_of

_CONFLICT_ACTION = (
    "see what is committed with onceflow status; then run with --resume (a new checkpoint begins at the committed offsets, "
    "nothing is lost or repeated) or with --restart (reads from starting_offsets again and repeats what was written)"
)


_TRACEBACK = "Traceback (most recent call last):"


def explain(error: BaseException, visible: str = "") -> BaseException:
    """The error to show for what a batch or a query raised; errors of onceflow itself stay as they are.

    ``visible``: what is to be said of the output (``Guarantee``), where the failure itself does not tell.
    """
    texts = list(_texts(error))
    of_a_row = next((found for text in texts if (found := find_malformed(text) or find_loop(text))), None)
    if of_a_row is not None:
        return of_a_row
    if isinstance(error, ProgressConflict) and "batch_id" in error.fields:  # others name a way out of their own
        return ProgressConflict(error.message, action=_CONFLICT_ACTION, **error.fields)
    if isinstance(error, OnceflowError):
        return error
    everything = "\n".join(texts)
    known = _data_loss(everything, visible) or _topic_gone(everything) or _plan_changed(everything)
    if known is not None:
        return known
    if has_lost_jvm(error):
        return QueryFailed(
            f"Spark's JVM has died or does not answer: {error}", action=_after("see what killed it", visible)
        )
    if isinstance(error, PySparkException) or type(error).__module__.startswith("py4j"):
        return QueryFailed(reason_of(error, everything), action=_after("see the cause", visible))
    return error


def has_lost_jvm(error: BaseException | None) -> bool:
    """Whether it says that there is no JVM any more. A call that was under way when it died may end with a bare error."""
    in_a_call = type(error) is Py4JError and re.fullmatch(r"An error occurred while calling \S+", str(error))
    return isinstance(error, Py4JNetworkError | ConnectionError) or bool(in_a_call)


@contextmanager
def telling_of_a_lost_jvm() -> Iterator[None]:
    """Raises an OnceflowError where py4j finds no JVM any more; what else is raised, by whoever is told too, stays as it is."""
    try:
        yield
    except (Py4JError, ConnectionError) as error:
        if not (has_lost_jvm(error) and _is_py4j_s(error)):
            raise
        raise explain(error) from error


def _is_py4j_s(error: BaseException) -> bool:
    """Whether py4j raised it, and not a pipe or a server that the caller talks to."""
    frames = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return isinstance(error, Py4JError) or any(name.partition(".")[0] == "py4j" for name in frames)


def _after(advice: str, visible: str) -> str:
    return f"{advice}; {visible}" if visible else advice


def _texts(error: BaseException) -> Iterator[str]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield str(current)
        current = current.__cause__ or current.__context__


def _data_loss(text: str, visible: str) -> OnceflowError | None:
    if not re.search(r"KAFKA_DATA_LOSS|Some data may have been lost|failOnDataLoss", text):
        return None
    return InputError(
        f"records were deleted before they were read: {_line_with(text, r'LOSS|lost|offset')}",
        action=_after(
            "raise the topic's retention; to go on without the lost records, give starting_offsets and run with --restart",
            visible,
        ),
    )


def _topic_gone(text: str) -> OnceflowError | None:
    if "UnknownTopicOrPartition" not in text:
        return None
    return TopicMissing(
        "a source topic does not exist (any more)", action="create it (kafka-topics.sh --create) or correct the plan"
    )


def _plan_changed(text: str) -> OnceflowError | None:
    changed = re.search(
        r"STATE_STORE_\w*SCHEMA\w*|STATEFUL_OPERATOR\w*|sources in the checkpoint offsets and now", text
    )
    if changed is None:
        return None
    return QueryFailed(
        f"the checkpoint was written by another plan, whose state does not fit this one: "
        f"{_line_with(text, re.escape(changed[0]))}",
        action="go back to the plan as it was; or move the checkpoint away and run with --resume: it begins at the "
        "committed offsets, and aggregations begin empty",
    )


def reason_of(error: BaseException, everything: str = "") -> str:
    """The innermost message, without stack frames; ``everything`` is the text of the error and of its causes."""
    text = everything or str(error)
    causes = re.findall(r"^Caused by: (?:[\w.$]+: )?(.+)$", text, re.MULTILINE)
    if causes:
        return _raised_by_python(text) if causes[-1].endswith(_TRACEBACK) else str(causes[-1])
    if isinstance(error, PySparkException) and not isinstance(error, StreamingQueryException):
        return words_of(error)
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\tat ")]
    raised = next((line for line in lines if line.startswith(": ")), "")  # by Java: the first line is py4j's own
    return re.sub(r"^: (?:[\w.$]+: )?", "", raised) or (lines[0] if lines else type(error).__name__)


def _raised_by_python(text: str) -> str:
    """What stands behind the frames of the last Python traceback; all of the text where it is cut off."""
    _, _, traceback = text.rpartition(_TRACEBACK)
    return next((line for line in traceback.splitlines() if line and not line[0].isspace()), text)


def _line_with(text: str, pattern: str) -> str:
    return next((line.strip() for line in text.splitlines() if re.search(pattern, line)), "")[:500]
