"""Topics that do not exist: when that is believed, and which ones somebody may have meant.

What it survives::

    a topic is made, and whoever made it is told so by the controller; a driver that starts now asks a busy broker
    which has not heard of the topic yet, and says that there is none: it is asked again for SURE_S
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

from onceflow.kafka.names import is_own

SURE_S = 2.0  # that a topic does not exist, from one answer that says so to the last
_CLOSE = 3  # for each name
_OTHERS = 5


def meant(missing: Iterable[str], known: Iterable[str]) -> str:
    """The closest of the topics that there are, and a handful of the others; Kafka's and onceflow's own are nobody's business."""
    names = sorted(name for name in known if not (name.startswith("__") or is_own(name)))
    if not names:
        return "there are no topics yet"
    close = _closest(missing, names)
    others = [name for name in names if name not in close]
    asked = f"did you mean {' or '.join(close)}? " if close else ""
    return asked + _listed(others, "other topics" if close else "topics") if others else asked.strip()


def _closest(missing: Iterable[str], names: Iterable[str]) -> list[str]:
    """Whatever the case: ``Orders`` is as good as ``orders``."""
    spelled: dict[str, list[str]] = {}
    for name in names:
        spelled.setdefault(name.lower(), []).append(name)
    found = [each for name in missing for each in get_close_matches(name.lower(), spelled, _CLOSE)]
    return list(dict.fromkeys(name for each in found for name in spelled[each]))


def _listed(names: list[str], what: str) -> str:
    more = len(names) - _OTHERS
    return f"{what}: {', '.join(islice(names, _OTHERS))}" + (f" and {more} more" if more > 0 else "")
