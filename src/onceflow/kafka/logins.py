"""Connections that tell why a login was refused, and not that nobody answers.

What it survives::

    the password is wrong; the broker refuses the login, and kafka-python closes the connection with that error
    it means to keep it for who connects next, and does so where connecting raised it, which a login does not (3.0.12)
    the bootstrap logs in again and again until its time is over, and says that no broker has answered

So the error is kept here. Only of a bootstrap server: no login was taken yet. Another broker, which has just started, may refuse
one that it does not know yet; kept, it would never be tried again.

::

    the broker answers that it refuses the login, and closes the connection at once
    kafka-python reads both together, and drops what it has read before the end: "socket disconnected"

So what was read is taken in first; the end is found once more by the next read. How a connection is made is dial.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from onceflow.errors import AuthenticationFailed
from onceflow.kafka.dial import dial
from onceflow.kafka_python import KafkaConnectionManager, SaslAuthenticationFailedError, UnsupportedSaslMechanismError

REFUSED = (SaslAuthenticationFailedError, UnsupportedSaslMechanismError)
"""What comes of a login that a broker refuses, or of the way in which it is asked for."""


class Connections(KafkaConnectionManager):  # type: ignore[misc]
    """kafka-python's, whose bootstrap ends with the first login that is refused."""

    def bootstrap_async(self, *arguments: Any, **options: Any) -> Any:
        self._auth_failures.clear()
        return super().bootstrap_async(*arguments, **options)

    def let_in(self) -> None:
        """A server has taken the login: what another one, which had just started, said before is no answer any more."""
        self._auth_failures.clear()

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        transport = await dial(self._net, node, self.config, timeout_at)
        transport._sock_recv = partial(_data_first, transport._sock_recv)  # noqa: SLF001  there is no other way in
        return transport

    async def _connect(self, node: Any, conn: Any, **options: Any) -> None:
        await super()._connect(node, conn, **options)
        error = conn.init_future.exception
        if isinstance(error, REFUSED) and self.cluster.is_bootstrap(node.node_id):
            self._auth_failures[node.node_id] = error  # raised by whoever connects next, as the bootstrap does


def _data_first(receive: Callable[[], tuple[bytes, Exception | None]]) -> tuple[bytes, Exception | None]:
    data, error = receive()
    return data, None if data else error


def refused(servers: str, error: Exception) -> AuthenticationFailed:
    """The error for the user; what kafka-python says holds no secret."""
    return AuthenticationFailed(
        f"{servers} refused the credentials: {error}",
        action="check sasl.mechanism, user name and password, or the certificates",
    )
