"""One connection through the wire: a thread for each direction, frame by frame.

What is worth care::

    a request is held, its client gives up and repeats it on a new connection; then the held one is released
    the broker's end stays open until the broker has answered it: that is how a late EndTxn meets a later transaction

    a produce request with acks=0 is never answered
    answers come in the order of requests, so an answer ends the waiting for all requests before it

    a request is sent twice under one correlation id
    the second answer is swallowed: the client would take it for a broken connection

    a request fails that the broker is not to see, and the answers to earlier ones are not there yet
    the broker is asked something idle in its place, so that the client's answers stay in their order
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from onceflow.verify.wire.frames import correlation_of, failed, frames, idle_question, request_head
from onceflow.verify.wire.rules import ActiveRule, Direction, Do, Head, Rules

_POLL_S = 0.05
_PIECE_BYTES = 1 << 16
_LAST_ANSWER_S = 30.0
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request without an answer: whether that is swallowed, which error code the client is answered instead, what held it."""

    head: Head
    swallowed: bool = False
    error: int = 0
    held_by: ActiveRule | None = None


class Link:
    """Forwards between a client and a broker under the rules, until one of them ends the connection."""

    def __init__(self, client: socket.socket, stream: BinaryIO, broker: socket.socket, rules: Rules, node: int) -> None:
        self._client, self._stream, self._broker = client, stream, broker
        self._rules, self._node = rules, node
        self._asked: deque[_Asked] = deque()
        self._closed = threading.Event()
        self._answered = threading.Condition()

    def run(self, on_request: Callable[[Head], None]) -> None:
        """Forward until the end, on this thread and another one."""
        answers = threading.Thread(target=self._answers, name="wire-answers", daemon=True)
        answers.start()
        try:
            self._requests(on_request)
        finally:  # also where what a rule does has failed
            self.close()
            answers.join()
            self._stream.close()
            self._client.close()
            self._broker.close()

    def close(self, *, reset: bool = False) -> None:
        """End both sides; ``reset``: as if the network had torn it (RST instead of FIN)."""
        if self._closed.is_set():
            return
        self._closed.set()
        with self._answered:
            self._answered.notify_all()
        for each in (self._client, self._broker):
            with contextlib.suppress(OSError):
                if reset:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                # A reader is woken; what is sent to the peer is decided when the socket is closed.
                each.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)

    # Requests

    def _requests(self, on_request: Callable[[Head], None]) -> None:
        with contextlib.suppress(OSError, ValueError):
            for frame in frames(self._stream):
                head = request_head(frame)
                on_request(head)
                if not self._pass_request(head, frame):
                    break

    def _pass_request(self, head: Head, frame: bytes) -> bool:
        """Treats one request; False if nothing can follow it."""
        active = self._rules.verdict(head, Direction.REQUEST, self._node)
        match self._met(active):
            case Do.CUT | Do.RESET:
                return False
            case Do.DROP:
                return self._swallow_rest(active, self._stream)
            case Do.HOLD:
                return self._send_late(active, head, frame)
            case Do.DUPLICATE:
                self._send(_Asked(head), frame)
                self._send(_Asked(head, swallowed=True), frame)
            case Do.FAIL if active:
                self._send(_Asked(head, error=active.rule.error), idle_question(head))
            case _:
                self._send(_Asked(head), frame)
        return True

    def _send(self, asked: _Asked, frame: bytes) -> None:
        self._asked.append(asked)
        self._broker.sendall(frame)

    def _send_late(self, active: ActiveRule | None, head: Head, frame: bytes) -> bool:
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)
        self._wait_released(active)
        if active and active.is_discarded:
            return False
        self._send(_Asked(head, held_by=active), frame)
        with self._answered:
            self._answered.wait_for(lambda: not self._asked or self._closed.is_set(), _LAST_ANSWER_S)
        return False

    # Answers

    def _answers(self) -> None:
        try:
            with contextlib.suppress(OSError, ValueError), self._broker.makefile("rb") as stream:
                for frame in frames(stream):
                    if not self._pass_answer(frame, stream):
                        break
        finally:
            self.close()

    def _pass_answer(self, frame: bytes, stream: BinaryIO) -> bool:
        asked = self._question(correlation_of(frame))
        if asked.held_by:
            asked.held_by.was_answered()
        if asked.swallowed:
            return True
        frame = failed(asked.head, asked.error) if asked.error else frame
        active = self._rules.verdict(asked.head, Direction.ANSWER, self._node)
        match self._met(active):
            case Do.CUT | Do.RESET:
                return False
            case Do.DROP:
                return self._swallow_rest(active, stream)
            case Do.HOLD:
                self._wait_released(active)
            case Do.FAIL if active:
                frame = failed(asked.head, active.rule.error)
        with contextlib.suppress(OSError):  # the client of a request that was held is gone
            self._client.sendall(frame)
        return True

    def _question(self, correlation: int) -> _Asked:
        """The request that this answers; those before it want no answer."""
        with self._answered:
            while self._asked:
                asked = self._asked.popleft()
                if asked.head.correlation == correlation:
                    self._answered.notify_all()
                    return asked
        raise OSError("an answer to nothing that was asked")

    # Both

    def _met(self, active: ActiveRule | None) -> Do | None:
        if active is None:
            return None
        rule = active.rule
        rule.then()
        if rule.do is Do.DELAY:
            self._closed.wait(rule.delay_s)
        elif rule.do is Do.RESET:
            self.close(reset=True)
        return rule.do

    def _wait_released(self, active: ActiveRule | None) -> None:
        while active and not active.is_released and not self._closed.is_set():
            active.wait_released(_POLL_S)

    def _swallow_rest(self, active: ActiveRule | None, stream: BinaryIO) -> bool:
        if active:
            active.silences(self)
        while stream.read(_PIECE_BYTES):
            pass
        return False
