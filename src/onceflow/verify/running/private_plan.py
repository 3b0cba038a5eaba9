"""The user's plan, made to run on the private cluster: everything that names a place is replaced, the SQL stays."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from onceflow.broker.java_tool import FAST_START
from onceflow.config import Duration, KafkaCluster, Plan, PlanFile, Source, Trigger, load
from onceflow.config.environment import VERBATIM
from onceflow.session import full_names
from onceflow.verify.private import LOCAL_FILES, local_uri, without_users_places
from onceflow.verify.running.purged import RETAINED_BATCHES
from onceflow.verify.running.users_files import with_whole_paths

MOST_TRANSACTION_TIMEOUT_MS = 10_000
"""A paused driver must be outlived within a run; what readers wait for at most follows from it, too."""

_WAITS = ("minOffsetsPerTrigger", "maxTriggerDelay")
_SPARK = {
    "spark.sql.streaming.minBatchesToRetain": str(RETAINED_BATCHES),
    # Small and quick: batches are tiny, and compiled code would not live long enough to pay.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": f"{' '.join(FAST_START)} -XX:-UsePerfData",
}


def private_plan(
    plan: Plan, *, bootstrap_servers: str, checkpoint: Path, spark: Mapping[str, str], trigger_ms: int | None = None
) -> Plan:
    """The plan with nothing left of the user's cluster, checkpoint, master and file systems; ``spark`` are the settings that name
    the new master.

    Every source begins at the earliest offset, because the private topics hold what the workload wrote and nothing else; and none
    waits for more input than there is::

        minOffsetsPerTrigger = 1000    the input ends, and 400 records are left: they come maxTriggerDelay (15 minutes) later
        onceflow verify                a pipeline that reads all of its input in no time that anybody waits for
    """
    trigger = Trigger() if trigger_ms is None else Trigger(processing_time=Duration(trigger_ms))
    timeout = min(plan.output.transaction_timeout, Duration(MOST_TRANSACTION_TIMEOUT_MS))
    return plan.model_copy(
        update={
            "kafka": KafkaCluster(bootstrap_servers=bootstrap_servers, create_topics=False),
            "checkpoint": local_uri(checkpoint),
            "trigger": trigger,
            "source": tuple(map(_source, plan.source)),
            "output": plan.output.model_copy(update={"transaction_timeout": timeout}),
            "spark": _spark(plan.spark, spark),
        }
    )


def _source(own: Source) -> Source:
    options = {name: value for name, value in own.options.items() if name not in _WAITS}
    return own.model_copy(update={"starting_offsets": "earliest", "options": options})


def _spark(own: Mapping[str, str], place: Mapping[str, str]) -> dict[str, str]:
    kept = with_whole_paths(without_users_places(full_names(own)))
    options = " ".join(
        filter(None, (kept.get("spark.driver.extraJavaOptions"), _SPARK["spark.driver.extraJavaOptions"]))
    )
    return {**kept, **_SPARK, **LOCAL_FILES, "spark.driver.extraJavaOptions": options, **place}


def write_plan(plan: Plan, path: Path) -> PlanFile:
    """Writes a plan as TOML that means the same without any environment, and gives it as it was read back.

    Readable for the user alone: what was a reference to a secret stands in it.
    """
    path.touch(mode=0o600)
    path.write_text(as_toml(plan), encoding="utf-8")
    file = load(path, {})
    if file.plan != plan:
        raise AssertionError(f"the plan written to {path} is not the plan that was given")
    return file


def as_toml(plan: Plan) -> str:
    """A plan's text."""
    return "".join(_table(_plain(plan), ()))


def _plain(value: Any) -> Any:
    """Models as tables by the names of the file, durations as text; what is empty is left out."""
    if isinstance(value, KafkaCluster):
        own = {name: getattr(value, name) for name in KafkaCluster.model_fields if name != "options"}
        return _plain({**own, **value.options})
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return _plain({field.alias or name: getattr(value, name) for name, field in fields.items()})
    if isinstance(value, Duration):
        return str(value)
    if isinstance(value, Mapping):
        return {
            str(name): _plain(inner) for name, inner in value.items() if inner is not None and inner not in ((), {})
        }
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Values first, then tables: what follows a header belongs to it."""
    for name, value in table.items():
        if not _is_table(value) and not _is_array(value):
            yield f"{_quoted(name)} = {_value(value, is_sql=not {name, *path}.isdisjoint(VERBATIM))}\n"
    for name, value in table.items():
        inner = (*path, name)
        header = ".".join(map(_quoted, inner))
        if _is_table(value):
            yield f"\n[{header}]\n"
            yield from _table(value, inner)
        elif _is_array(value):
            for element in value:
                yield f"\n[[{header}]]\n"
                yield from _table(element, inner)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_array(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(each, Mapping) for each in value)


def _value(value: Any, *, is_sql: bool) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value(each, is_sql=is_sql) for each in value)}]"
    if isinstance(value, str):
        # Outside of SQL a reference to the environment would be looked up when the file is read.
        return _quoted(value if is_sql else value.replace("${", "$${"))
    return json.dumps(value)


def _quoted(text: str) -> str:
    """JSON's strings are TOML's basic strings, but for one control character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
