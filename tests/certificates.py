"""Authorities and the certificates that they issue, made for one test."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Pair(NamedTuple):
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes

    @property
    def serial(self) -> int:
        return x509.load_pem_x509_certificate(self.certificate).serial_number


class Authority:
    """Issues certificates; `pem` is what trusts them."""

    def __init__(self, name: str = "authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._certificate = (
            _certificate(self._name, self._name, self._key, -DAY, 10 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        names: Sequence[str] = ("router.example",),
        *,
        begins: datetime.timedelta = -DAY,
        ends: datetime.timedelta = DAY,
        key: CertificateIssuerPrivateKeyTypes | None = None,
    ) -> Pair:
        """A certificate for these DNS names and IP addresses, valid from `begins` to `ends` after now."""
        key = ec.generate_private_key(ec.SECP256R1()) if key is None else key
        certificate = (
            _certificate(self._name, _name(names[0] if names else "none"), key, begins, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Pair(
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )


class Mounted:
    """A directory as kubelet mounts a Secret: `tls.crt`, `tls.key`, `ca.crt`, all swapped in one step.

    The names are links into `..data`, a link to a directory with a new name for each version.
    """

    def __init__(self, directory: Path, pair: Pair, authority: bytes = b"") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._version = 0
        self.cert, self.key, self.ca = (directory / name for name in ("tls.crt", "tls.key", "ca.crt"))
        self.swap(pair, authority)
        for path in (self.cert, self.key, self.ca):
            path.symlink_to(Path("..data", path.name))

    def swap(self, pair: Pair, authority: bytes = b"") -> None:
        self._version += 1
        version = self._directory / f"..{self._version}"
        version.mkdir()
        for path, content in ((self.cert, pair.certificate), (self.key, pair.key), (self.ca, authority)):
            (version / path.name).write_bytes(content)
        new = self._directory / "..data_tmp"
        new.symlink_to(version.name)
        os.replace(new, self._directory / "..data")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _certificate(
    issuer: x509.Name,
    subject: x509.Name,
    key: CertificateIssuerPrivateKeyTypes,
    begins: datetime.timedelta,
    ends: datetime.timedelta,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
    )
