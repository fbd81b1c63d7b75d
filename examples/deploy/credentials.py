"""Certificates for TLS: an authority of one's own, and a certificate that it has signed."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from distributed import Security


def write_credentials(folder: Path, days: int = 30) -> dict[str, str]:
    """Write an authority, a certificate and its key, and return the paths by Dask's names.

    Whoever has these files can run code on the workers: their owner alone may read them.
    """
    folder.mkdir(mode=0o700, parents=True)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = named("authority of this fleet"), authority_key
    authority = signed(*issuer, *issuer, days, is_authority=True)
    certificate = signed(named("this fleet"), key, *issuer, days)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    pem = serialization.Encoding.PEM
    contents = {
        "ca-file": authority.public_bytes(pem),
        "cert": certificate.public_bytes(pem),
        "key": private,
    }
    paths = {}
    for name, content in contents.items():
        path = folder / f"{name}.pem"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        paths[name] = str(path)
    return paths  # the authority's own key is not needed again


def named(name: str) -> x509.Name:
    """Return a name as certificates have it."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def signed(subject, key, issuer, issuer_key, days: int, *, is_authority: bool = False):
    """Return the certificate of a key, signed by the key of an issuer."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    return builder.sign(issuer_key, hashes.SHA256())


def security_of(paths: dict[str, str]) -> Security:
    """Return the credentials of a client, for `Fleet`."""
    return Security(
        require_encryption=True,
        tls_ca_file=paths["ca-file"],
        tls_client_cert=paths["cert"],
        tls_client_key=paths["key"],
    )


if __name__ == "__main__":
    print(*write_credentials(Path(sys.argv[1])).values(), sep="\n")
