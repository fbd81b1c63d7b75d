"""Credentials of a fleet: temporary ones, and the file by which another process joins it."""

from __future__ import annotations

import json
import logging
import os
import stat
from os import PathLike
from pathlib import Path
from typing import Any

from distributed import Security

from skfleet.exceptions import FleetError

logger = logging.getLogger("skfleet.fleet")

_FIELDS = ("tls_ca_file", "tls_client_cert", "tls_client_key")
_FOREIGN = stat.S_IRWXG | stat.S_IRWXO


def local_security(
    security: Security | bool | None, protocol: str | None, *, processes: bool
) -> Security:
    """Return the credentials of a local cluster: by default temporary ones for its processes."""
    if isinstance(security, Security):
        return security
    if security:
        return Security.temporary()
    configured = Security()
    if security is False or not processes or configured.require_encryption:
        return configured
    reason = f"protocol={protocol!r} has no encryption"
    if protocol in (None, "tls"):
        try:
            return Security.temporary()
        except ImportError:
            reason = "cryptography cannot be imported"
    logger.warning(
        "%s, so any user of this machine can connect to this fleet, and run code in your name",
        reason,
    )
    return configured


def save_connection(path: str | PathLike[str], address: str, security: Security) -> None:
    """Write an address and a client's credentials to a file that its owner alone may read."""
    content = {name: getattr(security, name) for name in _FIELDS} | {"address": address}
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
    partial.replace(path)


def is_connection_file(address: Any) -> bool:
    """Return whether an address is the path of a file that `save_connection` wrote."""
    if isinstance(address, PathLike):
        return True
    return isinstance(address, str) and "://" not in address and Path(address).is_file()


def load_connection(path: str | PathLike[str]) -> tuple[str, Security]:
    """Return the address and the credentials of a file, which nobody else may have read."""
    path = Path(path)
    try:
        status = path.stat()
        if os.name == "posix" and status.st_mode & _FOREIGN:
            raise FleetError(
                f"address must be a file that its owner alone may read. Got {str(path)!r} of mode "
                f"{stat.S_IMODE(status.st_mode):o} instead. If nobody else has read it: "
                f"chmod 600 {path}"
            )
        content = json.loads(path.read_text(encoding="utf-8"))
        address = content.pop("address")
        fields = {name: content[name] for name in _FIELDS if content[name] is not None}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise FleetError(
            "address must be a file that Fleet.save_connection wrote. Got "
            f"{str(path)!r} instead: {type(error).__name__}. Write it again."
        ) from error
    return address, Security(require_encryption=bool(fields), **fields)


def check_credentials(address: str, security: Security | None) -> None:
    """Raise for an address of TLS without a client's credentials."""
    if address.startswith("tls://") and (security or Security()).tls_client_cert is None:
        raise FleetError(
            f"security must have the credentials of a TLS scheduler. Got none with {address!r} "
            "instead. Give the `security` of the Fleet that started it, or the path of a file that "
            "its save_connection(path) wrote in place of the address."
        )
