"""Every benchmark, one after the other: what `make bench` runs. About forty minutes on two quiet cores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ORDER = (
    "encoder",
    "throughput",
    "overhead",
    "latency",
    "writer",
    "ingest",
    "outbox",
    "outbox_latency",
    "stores",
    "reader",
    "checker",
    "recovery",
)


def main() -> int:
    """Each in a process of its own, so that none inherits another's heap. Exit status 1 if one failed."""
    failed = []
    for name in ORDER:
        print(f"\n{name}\n", flush=True)
        done = subprocess.run([sys.executable, str(Path(__file__).with_name(f"{name}.py"))], check=False)
        if done.returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
