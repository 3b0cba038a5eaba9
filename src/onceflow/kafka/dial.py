"""A connection to a broker that is made, or whose socket is closed.

kafka-python leaves the socket of a try that fails to the garbage collector (3.0.12: ``net.inet.create_connection`` and
``KafkaConnectionManager._build_transport``)::

    a broker is down, a proxy or a TLS peer accepts and says nothing, or the client is closed while it connects
    the error's traceback holds the frames that hold the socket, and the connection holds the error
    the peer sees an open connection until a collection of the garbage, and whoever makes an error of a ResourceWarning has one
    in the middle of something else
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Any

from onceflow.kafka.loop import Loop
from onceflow.kafka_python import KafkaNetSocket, KafkaSSLTransport, KafkaTCPTransport
from onceflow.kafka_python import errors as kafka_errors


async def dial(loop: Loop, node: Any, config: Mapping[str, Any], timeout_at: float | None = None) -> KafkaTCPTransport:
    """A transport to ``node`` (host and port), its TLS handshake done where the settings want one.

    ``config`` is its connection manager's, ``timeout_at`` by the monotonic clock. Raises KafkaConnectionError. Runs on the loop.
    """
    tls = _tls(config)
    connection = await _connected(loop, node, config, timeout_at)
    try:
        transport = _transport(loop, connection, node.host, tls)
    except OSError as error:
        connection.close()
        raise kafka_errors.KafkaConnectionError(f"lost before the TLS handshake: {error}") from error
    except BaseException:
        connection.close()
        raise
    loop.owns(transport._sock)  # noqa: SLF001  with TLS it is another one than the connection
    try:
        await transport.handshake()
    except BaseException as error:
        transport.abort()
        if isinstance(error, Exception):
            raise kafka_errors.KafkaConnectionError(f"TLS handshake failed: {error}") from error
        raise
    return transport


async def _connected(loop: Loop, node: Any, config: Mapping[str, Any], timeout_at: float | None) -> socket.socket:
    route = KafkaNetSocket(config["proxy_url"])
    failure = kafka_errors.KafkaConnectionError(f"no address of {node.host}")
    for family, kind, protocol, _, address in route.dns_lookup(node.host, node.port):
        connection: socket.socket = route.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            for option in config["socket_options"]:
                connection.setsockopt(*option)
            await route.sock_connect(loop, connection, address, timeout_at=timeout_at)
        except (OSError, kafka_errors.KafkaConnectionError) as error:
            connection.close()
            failure = kafka_errors.KafkaConnectionError(f"unable to connect: {error}")
        except kafka_errors.KafkaTimeoutError as error:
            connection.close()
            raise kafka_errors.KafkaConnectionError("connection timed out") from error
        except BaseException:  # the client is closed meanwhile
            connection.close()
            raise
        else:
            return connection
    raise failure


def _tls(config: Mapping[str, Any]) -> ssl.SSLContext | None:
    """What TLS needs, where the settings want it. Raises OSError for a certificate that cannot be read."""
    if config["security_protocol"] not in ("SSL", "SASL_SSL"):
        return None
    context: ssl.SSLContext = KafkaSSLTransport._build_ssl_context(config)  # noqa: SLF001  made here, and given to it
    return context


def _transport(loop: Loop, connection: socket.socket, host: str, tls: ssl.SSLContext | None) -> KafkaTCPTransport:
    """Raises OSError where the connection is lost already.

    Asked first: ``wrap_socket`` finds it out too, when it has made a socket of its own that nobody closes (Python 3.11).
    """
    if tls is None:
        return KafkaTCPTransport(loop, connection, host=host)
    connection.getpeername()
    return KafkaSSLTransport(loop, connection, host=host, ssl_context=tls)
