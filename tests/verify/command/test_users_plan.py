"""A plan of a user, through the command: a real cluster, real Spark, real kills, and a judgement that must not be wrong."""

from __future__ import annotations

import json
import socket
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.verify.command.support import users_plan, verify

HADOOP = """<configuration>
<property><name>fs.defaultFS</name><value>hdfs://127.0.0.1:{port}</value></property>
</configuration>
"""


@contextmanager
def listener() -> Iterator[tuple[int, list[object]]]:
    """A port of the loopback, and everybody who ever connected to it."""
    visitors: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            try:
                while True:
                    connection, address = server.accept()
                    visitors.append(address)
                    connection.close()
            except OSError:
                return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1], visitors
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)


@pytest.mark.slow
@pytest.mark.faults
def test_a_users_pipeline_holds_and_the_users_cluster_sees_nothing_of_it(tmp_path: Path) -> None:
    with listener() as (port, visitors):
        plan = users_plan(tmp_path, port)
        (tmp_path / "core-site.xml").write_text(HADOOP.format(port=port))
        done = verify(
            tmp_path, plan, "--for", "10s", "--rate", "100", "--seed", "4", "--json",
            "--faults", "kill-driver-at-step,lose-commit-log", HADOOP_CONF_DIR=str(tmp_path),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    assert not visitors
    assert not (tmp_path / "users-checkpoint").exists()
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "report" / "report.json").read_text())
    (run,) = document["runs"]
    assert run["counts"]["input records aborted"] > 0
    assert run["counts"]["output records"] == run["counts"]["input records committed"] > 0
    assert run["counts"]["effects of readers"] == run["counts"]["output records"]
    assert run["counts"]["faults"] > 0
    assert run["counts"]["drivers"] > 1
    assert not ET.parse(tmp_path / "report" / "junit.xml").findall(".//failure")
