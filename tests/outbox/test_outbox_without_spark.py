"""A relay needs no Spark."""

from __future__ import annotations

from tests.outbox.support import Shop, events
from tests.without_spark import run_command_without_spark


def test_the_command_needs_no_spark(shop_sqlite: Shop) -> None:
    shop = shop_sqlite
    shop.insert_all(events(3))
    at = ("--from", shop.url, "--table", shop.table, "--bootstrap-servers", shop.cluster.servers)
    run_command_without_spark("outbox", "relay", shop.name, *at, "--once", "--json")
    shop.check()
