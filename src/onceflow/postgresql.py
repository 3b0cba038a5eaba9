"""How onceflow connects to PostgreSQL, whatever for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONNECTION: Mapping[str, Any] = {
    "application_name": "onceflow",
    "connect_timeout": 10,
    # A server that vanished without a word must not hold a statement for hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""libpq's options; those of the user's URL go before."""
