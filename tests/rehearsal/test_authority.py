"""The world's certificates: real clients accept them for Google's names, and only with the world's CA."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest

from rehearsal.authority import TlsFiles, issue
from rehearsal.world import names


@pytest.fixture
def tls(tmp_path: Path) -> TlsFiles:
    return issue(tmp_path, names.CERTIFICATE_NAMES, [names.FRONT_DOOR])


def handshake(tls: TlsFiles, name: str, client: ssl.SSLContext) -> str:
    """Protocol version that a client and a server with the world's certificate agree on."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tls.certificate, tls.key)
    current, existing = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(existing, server_side=True).close()
        except (ssl.SSLError, OSError):
            existing.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(current, server_hostname=name) as connection:
            return str(connection.version())
    finally:
        current.close()
        thread.join()


def strict(bundle: Path) -> ssl.SSLContext:
    """As Python 3.13 makes them by default, on every version."""
    context = ssl.create_default_context(cafile=str(bundle))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


@pytest.mark.parametrize(
    "name",
    ["storage.googleapis.com", "us-east5-aiplatform.googleapis.com", "accounts.google.com", names.FRONT_DOOR],
)
def test_accepted_for_googles_names(tls: TlsFiles, name: str) -> None:
    assert handshake(tls, name, strict(tls.bundle)) == "TLSv1.3"


def test_refused_for_other_names(tls: TlsFiles) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(tls, "example.com", strict(tls.bundle))


def test_refused_outside_of_the_world(tls: TlsFiles, tmp_path: Path) -> None:
    other = issue(tmp_path / "other", names.CERTIFICATE_NAMES, [])
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(tls, "storage.googleapis.com", strict(other.ca))


def test_the_key_is_for_its_owner_only(tls: TlsFiles) -> None:
    assert tls.key.stat().st_mode & 0o077 == 0


def test_every_served_name_is_covered() -> None:
    for name in names.served():
        label, _, rest = name.partition(".")
        assert f"*.{rest}" in names.CERTIFICATE_NAMES, label
