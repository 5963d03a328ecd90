"""Imitates the cluster's DNS: the names of pods, as headless services have them, and Google's.

https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/; the messages are RFC 1035's.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence

from rehearsal.kubernetes.plane.control_plane import ADDRESS

_PORT = 53
_SUFFIX = ".svc.cluster.local"
_A, _IN, _TTL_S = 1, 1, 5
_ANSWER, _NO_SUCH_NAME = 0x8580, 0x8583  # a response, authoritative, recursion desired and available
_POINTER_TO_QUESTION = 0xC00C
_POLL_S = 0.2


class Names:
    """A name server: `addresses` returns those of `HOSTNAME.SUBDOMAIN.NAMESPACE`."""

    def __init__(self, addresses: Callable[[str], Sequence[str]], upstream: Mapping[str, str]):
        """`others`: names that aren't the cluster's, with their addresses."""
        self._addresses, self._upstream = addresses, upstream
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self) -> None:
        """Listen where the pods' resolv.conf points."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((ADDRESS, _PORT))
        self._socket.settimeout(_POLL_S)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        self._stopping.set()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                message, sender = self._socket.recvfrom(512)
                self._socket.sendto(self.answer(message), sender)
            except TimeoutError:
                continue
            except (IndexError, struct.error, UnicodeDecodeError):
                continue  # not a question

    def answer(self, message: bytes) -> bytes:
        """Return the response to a message with one question; other types than A have no records."""
        number = message[:2]
        labels, at = [], 12
        while length := message[at]:
            labels.append(message[at + 1 : at + 1 + length].decode("ascii"))
            at += 1 + length
        kind, _ = struct.unpack(">HH", message[at + 1 : at + 5])
        question = message[12 : at + 5]
        name = ".".join(labels).lower()
        addresses: Sequence[str] = [self._upstream[name]] if name in self._upstream else []
        if name.endswith(_SUFFIX):
            addresses = self._addresses(name.removesuffix(_SUFFIX))
        records = addresses if kind == _A else []
        flags = _ANSWER if addresses else _NO_SUCH_NAME
        head = number + struct.pack(">HHHHH", flags, 1, len(records), 0, 0)
        fixed = struct.pack(">HHHIH", _POINTER_TO_QUESTION, _A, _IN, _TTL_S, 4)
        return head + question + b"".join(fixed + ipaddress.IPv4Address(record).packed for record in records)
