"""A certificate authority for one world: nobody outside of it trusts the key, and it dies with the world."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SYSTEM_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_LIFETIME = datetime.timedelta(days=30)
_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class TlsFiles:
    """PEM files. `bundle` is the system's trusted CAs and ours."""

    ca: Path
    bundle: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Pair:
    """PEM files of a certificate, with its authority's behind it, and its key."""

    certificate: Path
    key: Path


class Authority:
    """An authority whose key is never written down, and the certificates that it signs."""

    def __init__(self, folder: Path, name: str = "Rehearsal CA"):
        """Create the authority; `ca` is its certificate."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._now = folder, datetime.datetime.now(datetime.UTC)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._certificate = (
            _certificate(self._name, self._name, self._key.public_key(), self._now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(self._identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self._certificate.public_bytes(_PEM))

    def server(self, file: str, names: Sequence[str], addresses: Sequence[str]) -> Pair:
        """Return a server's certificate for `names` (wildcards allowed) and IP `addresses`."""
        alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        return self._sign(
            file, _named(names[0]), ExtendedKeyUsageOID.SERVER_AUTH, x509.SubjectAlternativeName(alternatives)
        )

    def client(self, file: str, user: str, groups: Sequence[str] = ()) -> Pair:
        """Return a client's certificate with its name and groups."""
        return self._sign(file, _named(user, groups), ExtendedKeyUsageOID.CLIENT_AUTH)

    def _sign(
        self, file: str, subject: x509.Name, usage: x509.ObjectIdentifier, *more: x509.ExtensionType
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        authority = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        # Python 3.13's VERIFY_X509_STRICT refuses certificates without key identifiers and key usage.
        builder = (
            _certificate(subject, self._name, key.public_key(), self._now)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(authority, critical=False)
        )
        for extension in more:
            builder = builder.add_extension(extension, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        pair = Pair(self._folder / f"{file}.pem", self._folder / f"{file}.key")
        pair.certificate.write_bytes(signed.public_bytes(_PEM) + self._certificate.public_bytes(_PEM))
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(
            key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return pair


def issue(folder: Path, names: list[str], addresses: list[str]) -> TlsFiles:
    """Make a CA and a server certificate for `names` (wildcards allowed) and IP `addresses`."""
    authority = Authority(folder)
    server = authority.server("server", names, addresses)
    files = TlsFiles(authority.ca, folder / "bundle.pem", server.certificate, server.key)
    trusted = SYSTEM_BUNDLE.read_bytes() if SYSTEM_BUNDLE.exists() else b""
    files.bundle.write_bytes(trusted + b"\n" + files.ca.read_bytes())
    return files


def _named(name: str, groups: Sequence[str] = ()) -> x509.Name:
    """Return a subject; Kubernetes reads organizations as groups."""
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
