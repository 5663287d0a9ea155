"""Certificates and keys in files, read and checked; and a pair made in memory. Nothing here serves them."""

from __future__ import annotations

import datetime
import ipaddress
import secrets
import socket
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from extproc.config import TlsConfig

SELF_SIGNED_DAYS = 3650
"""As long as the reference Endpoint Picker's certificate is valid: it ends with the process anyway."""

BACKDATED = datetime.timedelta(hours=1)
"""A self-signed certificate is valid from so long ago: the gateway's clock may be behind."""

MAX_BYTES = 1024 * 1024
"""A larger file is refused: the bundle of every public authority has some 200 KB."""


class TlsError(Exception):
    """Files that no TLS can be served with; the text names the key, the file, what is wrong and a remedy."""


class Material(NamedTuple):
    """What TLS is served with, checked: the key is that of the first certificate."""

    chain: bytes
    """PEM: the certificate, then its intermediates."""
    key: bytes
    """PEM, not encrypted."""
    client_ca: bytes | None
    """PEM: the authorities whose clients are accepted; None: clients show no certificate."""
    names: tuple[str, ...]
    """DNS names and IP addresses that the certificate is valid for."""
    expires: float
    """When the certificate expires, in seconds since the epoch."""


def read(config: TlsConfig, now: float, own: Material | None = None) -> Material:
    """What a listener with these settings serves with; `own` is its self-signed pair, where it has one.

    `now` in seconds since the epoch. Raises `TlsError`.
    """
    client_ca = None if config.client_ca is None else read_authorities(config.client_ca)
    if config.cert is None or config.key is None:
        pair = self_signed(now) if own is None else own
    else:
        pair = read_pair(config.cert, config.key, now)
    return pair._replace(client_ca=client_ca)


def read_pair(cert: Path, key: Path, now: float) -> Material:
    """The certificate and key in these files, without authorities. `now`: seconds since the epoch.

    Raises `TlsError` if a file cannot be read, is not PEM, does not belong to the other, or the certificate
    is not valid at `now`.
    """
    chain = _content("tls.cert", cert)
    secret = _content("tls.key", key)
    certificates = _certificates("tls.cert", cert, chain)
    private = _private_key(key, secret)
    leaf = certificates[0]
    if not _belongs(private, leaf):
        if any(_belongs(private, other) for other in certificates):
            raise TlsError(
                f"tls.cert: {cert}: its first certificate is not that of tls.key {key}, a later one is; put"
                " that one first and its intermediates after it"
            )
        raise TlsError(
            f"tls.key: {key}: is not the key of the certificate in tls.cert {cert}; give files of one pair,"
            " and replace both in one step (Kubernetes does, for a Secret mounted without subPath)"
        )
    begins, expires = leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp()
    if expires <= now:
        raise TlsError(f"tls.cert: {cert}: expired on {date(expires)}; renew it")
    if begins > now:
        raise TlsError(
            f"tls.cert: {cert}: is not valid before {date(begins)}; check this machine's clock, or issue it"
            " anew"
        )
    return Material(chain, secret, None, _names(leaf), expires)


def read_authorities(path: Path) -> bytes:
    """The certificates in a file of authorities. Raises `TlsError` if it cannot be read or holds none."""
    content = _content("tls.clientCa", path)
    _certificates("tls.clientCa", path, content)
    return content


def issued(material: Material) -> bool:
    """Whether its own chain is of one of its `client_ca` too, so that trusting that one trusts the chain."""
    authorities = x509.load_pem_x509_certificates(material.client_ca) if material.client_ca else []
    return any(
        _issued(certificate, authority)
        for certificate in x509.load_pem_x509_certificates(material.chain)
        for authority in authorities
    )


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def self_signed(now: float, host: str | None = None) -> Material:
    """A new pair, signed by itself, for `host` (default: this machine's name) and localhost.

    `now` in seconds since the epoch. An ECDSA P-256 key: every gateway takes it, and it is made in no time.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    host = socket.gethostname() if host is None else host
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "warmroute")])
    begins = datetime.datetime.fromtimestamp(now, datetime.UTC) - BACKDATED
    names = dict.fromkeys([host, "localhost"])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(secrets.randbits(127) + 1)
        .not_valid_before(begins)
        .not_valid_after(begins + datetime.timedelta(days=SELF_SIGNED_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(one) for one in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Material(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        None,
        tuple(names),
        certificate.not_valid_after_utc.timestamp(),
    )


def _content(field: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise TlsError(f"{field}: {path}: no such file; name a PEM file, or mount what holds it") from None
    except PermissionError:
        raise TlsError(f"{field}: {path}: may not be read; let the user of this process read it") from None
    except OSError as error:
        raise TlsError(f"{field}: {path}: cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise TlsError(f"{field}: {path}: is larger than {MAX_BYTES} bytes; name a PEM file")
    if not data.strip():
        raise TlsError(f"{field}: {path}: is empty; it must hold PEM (-----BEGIN ...)")
    return data


def _certificates(field: str, path: Path, content: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        said = "holds a key; name the certificate's file" if b"PRIVATE KEY-----" in content else ""
        raise TlsError(
            f"{field}: {path}: "
            + (said or "is not a certificate in PEM (-----BEGIN CERTIFICATE-----); convert or replace it")
        ) from None


def _private_key(path: Path, content: bytes) -> rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(content, None)
    except TypeError:
        raise TlsError(
            f"tls.key: {path}: is encrypted; write it without a passphrase (openssl pkey -in FILE -out FILE)"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise TlsError(
            f"tls.key: {path}: is not a private key in PEM (-----BEGIN PRIVATE KEY-----); convert it, or name"
            " another file"
        ) from None
    # What the TLS library of gRPC and Envoy (BoringSSL) takes by default: not P-521, not Ed25519.
    if isinstance(key, rsa.RSAPrivateKey):
        return key
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
        return key
    raise TlsError(
        f"tls.key: {path}: is of a kind that gRPC and Envoy refuse; make an RSA key, or an ECDSA one on the"
        " curve P-256 or P-384"
    )


def _belongs(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> bool:
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    try:
        return certificate.public_key().public_bytes(*form) == key.public_key().public_bytes(*form)
    except (UnsupportedAlgorithm, ValueError):
        return False


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    addresses: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = [
        address
        for address in names.get_values_for_type(x509.IPAddress)
        if isinstance(address, ipaddress.IPv4Address | ipaddress.IPv6Address)
    ]
    return (*names.get_values_for_type(x509.DNSName), *map(str, addresses))


def date(seconds: float) -> str:
    """Seconds since the epoch for people."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
