"""An engine without Spark, Kafka or any defence: ``python scripted.py PLAN``. It speaks the engines' lines.

Its input are the numbers from 0 on, three a batch. It first writes down where a batch ends (``offsets/N``), then the numbers (to
``output``), then that the batch is done (``commits/N``), and when it begins it believes what it finds. So whatever ends it in
between, or runs beside it, makes it write numbers again. The plan's ``[spark]`` table says how it fails, if it shall,
with ``empty`` that every second batch has no numbers (it says how many each has then), and with ``standby`` that the one that
waits notes that in a file, which it removes when it waits no more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import tomllib
from pathlib import Path

from onceflow.verify.engines.conversation import Conversation
from onceflow.verify.engines.lines import Message, Told

NUMBERS = 3
WRITTEN_S = 0.05  # most of a batch's time lies between its output and its commit


def main() -> int:
    plan = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    behaviour = plan.get("spark", {})
    checkpoint = Path(plan["checkpoint"])
    conversation = Conversation()
    stopped = threading.Event()
    waits = checkpoint / "waits"
    if "standby" in behaviour:
        waits.touch(exist_ok=False)
    conversation.tell(Message(Told.READY))
    order = conversation.wait_for_run()
    waits.unlink(missing_ok=True)
    if "dies" in behaviour:
        return 3
    (checkpoint / f"mode-{os.getpid()}").write_text(order.mode)
    conversation.on_stop(stopped.set)
    conversation.tell(Message(Told.STARTED))
    if order.mode == behaviour.get("fails_in_mode"):
        lasting = "lasting" in behaviour
        error = "as the script says\nin two lines"
        conversation.tell(Message(Told.FAILED, code=behaviour["code"], error=error, lasting=lasting))
        return 1
    run(checkpoint, conversation, stopped, empty="empty" in behaviour)
    if "dies_at_its_end" in behaviour:
        print("the last of its log", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if "says" in behaviour:
        os.write(1, f"{behaviour['says']}\n".encode())
    conversation.tell(Message(Told.FINISHED))
    return 0


def run(checkpoint: Path, conversation: Conversation, stopped: threading.Event, *, empty: bool) -> None:
    offsets, commits = checkpoint / "offsets", checkpoint / "commits"
    for log in (offsets, commits):
        log.mkdir(exist_ok=True)
    conversation.step("CLAIM", -1)
    done = max((int(each.name) for each in commits.iterdir()), default=-1)
    position = end_of(offsets / str(done))
    batch = done + 1
    while not stopped.is_set():
        planned = offsets / str(batch)
        if not planned.exists():
            # Whoever is killed while it writes leaves no entry without an end.
            new = offsets.with_name(f"new-{os.getpid()}")
            new.write_text(f"{position + (0 if empty and batch % 2 else NUMBERS):08d}")
            new.replace(planned)
        end = end_of(planned)
        conversation.step("WRITE", batch)
        with (checkpoint / "output").open("a") as output:
            output.writelines(f"{number} {os.getpid()}\n" for number in range(position, end))
        time.sleep(WRITTEN_S)
        conversation.step("COMMIT", batch)
        (commits / str(batch)).touch()
        conversation.tell(Message(Told.COMMITTED, batch=batch, records=end - position if empty else None))
        batch, position = batch + 1, end


def end_of(entry: Path) -> int:
    return int(entry.read_text() or 0) if entry.exists() else 0


if __name__ == "__main__":
    sys.exit(main())
