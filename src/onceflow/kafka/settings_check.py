"""What can be wrong with bootstrap servers and client options, found without any I/O."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from onceflow.kafka import jaas
from onceflow.kafka.options import KNOWN, LOGIN_MODULES, REFUSED, REFUSED_VALUES, SECRETS

_STORE_SUFFIXES = (".jks", ".p12", ".pfx", ".keystore", ".truststore", ".bcfks")


def mistakes_of(bootstrap_servers: str, options: Mapping[str, str]) -> list[tuple[str, str]]:
    """Every mistake as (option name, text); the text never holds a value of a secret."""
    found = [("bootstrap_servers", text) for text in _server_mistakes(bootstrap_servers)]
    for name, value in options.items():
        found += [(name, f"{name}: {text}") for text in _option_mistakes(name, value)]
    return found + _security_mistakes(options)


def _server_mistakes(servers: str) -> list[str]:
    entries = entries_of(servers)
    if not entries:
        return ["bootstrap_servers: is empty; give host:port, several with commas"]
    return [f"bootstrap_servers: {entry!r} is not host:port" for entry in entries if not _is_host_and_port(entry)]


def entries_of(servers: str) -> list[str]:
    """The single servers of a comma-separated list."""
    return [entry.strip() for entry in servers.split(",") if entry.strip()]


def _is_host_and_port(entry: str) -> bool:
    host, _, port = entry.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    return bool(host) and (bracketed or ":" not in host) and port.isdecimal() and 0 < int(port) < 65536


def _option_mistakes(name: str, value: str) -> list[str]:
    if name in REFUSED:
        return [f"cannot be set: {REFUSED[name]}"]
    if name not in KNOWN:
        return [f"unknown setting{_suggestion(name)}"]
    if (name, value) in REFUSED_VALUES:
        return [f"{value}: {REFUSED_VALUES[name, value]}"]
    if name.endswith("store.location") and value.lower().endswith(_STORE_SUFFIXES):
        return [f"{value} is a Java key store, which cannot be read from Python: use a PEM file"]
    try:
        KNOWN[name].convert(value)
    except ValueError as error:
        shown = "the value" if name in SECRETS else repr(value)
        return [f"{shown} {error if str(error).startswith('must') else 'is not a whole number'}"]
    return []


def _suggestion(name: str) -> str:
    plain = name.removeprefix("kafka.")
    if plain != name and (plain in KNOWN or plain in REFUSED):
        return f": leave out the prefix, {plain}"
    close = difflib.get_close_matches(name, [*KNOWN, *REFUSED], n=1)
    return f", did you mean {close[0]}?" if close else ""


def _security_mistakes(options: Mapping[str, str]) -> list[tuple[str, str]]:
    """Options that only work together."""
    protocol = options.get("security.protocol", "PLAINTEXT")
    found: list[tuple[str, str]] = []
    if protocol.startswith("SASL_"):
        found += _login_mistakes(options, protocol)
    else:
        found += _useless(options, "sasl.", protocol, "SASL_SSL (or SASL_PLAINTEXT)")
    if not protocol.endswith("SSL"):
        found += _useless(options, "ssl.", protocol, "SSL (or SASL_SSL)")
    if "ssl.key.password" in options and "ssl.keystore.location" not in options:
        found.append(("ssl.key.password", "ssl.key.password: there is no ssl.keystore.location whose key it opens"))
    return found


def _useless(options: Mapping[str, str], prefix: str, protocol: str, needed: str) -> list[tuple[str, str]]:
    return [
        (name, f"{name}: has no effect with security.protocol {protocol}; set security.protocol to {needed}")
        for name in options
        if name.startswith(prefix) and name in KNOWN
    ]


def _login_mistakes(options: Mapping[str, str], protocol: str) -> list[tuple[str, str]]:
    found = []
    if "sasl.mechanism" not in options:
        known = ", ".join(LOGIN_MODULES)
        found.append(("security.protocol", f"sasl.mechanism: is missing, {protocol} needs it ({known})"))
    parts = [name for name in ("sasl.username", "sasl.password") if name in options]
    if "sasl.jaas.config" in options:
        found += [(name, f"{name}: sasl.jaas.config is given too; keep one of them") for name in parts]
        return found + _jaas_mistakes(options["sasl.jaas.config"])
    for name in ("sasl.username", "sasl.password"):
        if not options.get(name):
            found.append(("security.protocol", f"{name}: is missing, {protocol} needs it"))
        elif not options[name].isprintable():
            found.append((name, f"{name}: holds a control character (a line end?), which JAAS cannot carry"))
    return found


def _jaas_mistakes(text: str) -> list[tuple[str, str]]:
    try:
        login = jaas.parse(text)
    except ValueError as error:
        return [("sasl.jaas.config", f"sasl.jaas.config: {error}")]
    if login.module not in LOGIN_MODULES.values():
        modules = " and ".join(sorted({module.rpartition(".")[2] for module in LOGIN_MODULES.values()}))
        return [("sasl.jaas.config", f"sasl.jaas.config: this login module is not supported; {modules} are")]
    return []
