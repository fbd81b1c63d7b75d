"""Credentials of a fleet: temporary ones, and the file by which another process joins it."""

from __future__ import annotations

import json
import logging
import os
from os import PathLike
from pathlib import Path
from typing import TypeGuard

from distributed import Security

from skfleet._config import get_config
from skfleet._private_files import check_private, check_trusted, write_private_file
from skfleet.exceptions import FleetError

logger = logging.getLogger("skfleet.fleet")

_FIELDS = ("tls_ca_file", "tls_client_cert", "tls_client_key")


def local_security(
    security: Security | bool | None, protocol: str | None, *, processes: bool
) -> Security:
    """Return the credentials of a local cluster: by default temporary ones for its processes."""
    if isinstance(security, Security):
        return security
    if security:
        return Security.temporary()
    configured = Security()
    if security is None and configured.require_encryption and configured.tls_ca_file is not None:
        return configured
    plain = Security(require_encryption=False)
    if security is False or not processes:
        return plain
    reason = f"protocol={protocol!r} has no encryption"
    if protocol in (None, "tls"):
        try:
            return Security.temporary()
        except ImportError:
            if protocol == "tls" or configured.require_encryption:
                raise
            reason = "cryptography cannot be imported"
    logger.warning(
        "%s, so any user of this machine can connect to this fleet, and run code in your name",
        reason,
    )
    return plain


def save_connection(path: str | PathLike[str], address: str, security: Security) -> None:
    """Write an address and a client's credentials to a file that its owner alone may read."""
    content = {name: getattr(security, name) for name in _FIELDS} | {"address": address}
    write_private_file(os.fspath(path), json.dumps(content, indent=1).encode())


def is_connection_file(address: object) -> TypeGuard[str | PathLike[str]]:
    """Return whether an address is a path, as of a file that `save_connection` wrote."""
    if isinstance(address, PathLike):
        return True
    if not isinstance(address, str) or "://" in address:
        return False
    return os.sep in address or address.endswith(".json") or os.path.isfile(address)


def load_connection(path: str | PathLike[str]) -> tuple[str, Security | None]:
    """Return the address of a file, and its credentials, which nobody else may have read.

    ``dask scheduler --scheduler-file`` writes an address alone, which nobody else may have written.
    """
    path = os.fspath(path)
    try:
        content = json.loads(Path(path).read_bytes())
        address = content["address"]
        fields = {name: content[name] for name in _FIELDS if content.get(name) is not None}
        if fields:
            check_private(path)
        elif not get_config().trust_files:
            check_trusted(path)
    except PermissionError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise FleetError(
            "address must be a file of Fleet.save_connection or `dask scheduler --scheduler-file`, "
            f"or host:port of a scheduler. Got {path!r} instead: {type(error).__name__}. Write the "
            "file again."
        ) from error
    return address, Security(require_encryption=True, **fields) if fields else None


def check_credentials(address: str, security: Security | None) -> None:
    """Raise for an address of TLS without a client's credentials."""
    if address.startswith("tls://") and (security or Security()).tls_client_cert is None:
        raise credentials_error(address, "none")


def credentials_error(address: str, got: str) -> FleetError:
    """Return the error for credentials that are not those of the scheduler."""
    return FleetError(
        f"security must have the credentials of a TLS scheduler. Got {got} with {address!r} "
        "instead. Give the `security` of the Fleet that started it, or the path of a file that "
        "its save_connection(path) wrote in place of the address."
    )
