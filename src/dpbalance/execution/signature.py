"""Did the platform write this? Documents in an envelope with an Ed25519 signature."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbalance.errors import FileFormatError, PlanRefused

DOMAIN = b"dpbalance-plan/1\n"
"""What stands before every signed document, so that no signature of another kind can be taken for one of a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A document as it was signed, byte by byte."""

    document: str
    signature: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.document.encode()).hexdigest()


class PlanSigner:
    """The private half of the platform's key."""

    def __init__(self, private: Any) -> None:
        self._private = private

    @property
    def public(self) -> str:
        """The public half, as hexadecimal text: what a device trusts."""
        return str(self._private.public_key().public_bytes_raw().hex())

    def sign(self, document: bytes) -> Envelope:
        return Envelope(document=document.decode(), signature=self._private.sign(DOMAIN + document).hex())


def plan_signer(key_file: Path | None) -> PlanSigner:
    """The key in this file, which is made when there is none; None is a new one that is kept nowhere."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    if key_file is None:
        return PlanSigner(Ed25519PrivateKey.generate())
    try:
        if not key_file.exists():
            key_file.parent.mkdir(parents=True, exist_ok=True)
            pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            with os.fdopen(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(pem)
        private = load_pem_private_key(key_file.read_bytes(), password=None)
    except OSError as problem:
        raise FileFormatError(f"cannot use the key {key_file}: {problem.strerror or problem}") from None
    except ValueError as problem:
        raise FileFormatError(f"{key_file} is no signing key: {problem}") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise FileFormatError(f"{key_file} holds a key of another kind than Ed25519")
    return PlanSigner(private)


def opened(envelope: Envelope, trusted: str) -> bytes:
    """The document, if the owner of the trusted key signed exactly this one."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    document = envelope.document.encode()
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(trusted))
        key.verify(bytes.fromhex(envelope.signature), DOMAIN + document)
    except (InvalidSignature, ValueError):
        raise PlanRefused("the plan is not signed by the platform this device trusts") from None
    return document
