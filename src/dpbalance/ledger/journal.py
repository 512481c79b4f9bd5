"""Who wrote a row, and is it the row that was written? A hash chain, signed with a key that only writers have."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpbalance.errors import AlreadyRegistered, FileFormatError
from dpbalance.ledger.page import JournalRow


class Signer:
    """Seals rows with one private key, which is loaded when the first row is sealed."""

    def __init__(self, key_file: Path | None, private: Any = None) -> None:
        self._key_file, self._private = key_file, private

    def seal(self, row: JournalRow) -> JournalRow:
        """The row with its hash and its signature."""
        if self._private is None:
            self._private = _read(self._key_file)
        computed = row.computed()
        return replace(row, hash=computed, signature=self._private.sign(bytes.fromhex(computed)).hex())


def new_signer(key_file: Path | None) -> tuple[Signer, str]:
    """A new key, kept in this file for its owner only (None: nowhere), and its public half as hexadecimal text."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = Ed25519PrivateKey.generate()
    if key_file is not None:
        pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            with os.fdopen(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(pem)
        except FileExistsError:
            raise AlreadyRegistered(f"there is a key at {key_file} already", hint="--key-file FILE") from None
        except OSError as problem:
            raise FileFormatError(f"cannot write the key {key_file}: {problem.strerror or problem}") from None
    return Signer(key_file, private), private.public_key().public_bytes_raw().hex()


def verifier(public: str) -> Callable[[JournalRow], bool]:
    """Tells whether a row was signed by the owner of this public key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))

    def signed(row: JournalRow) -> bool:
        try:
            key.verify(bytes.fromhex(row.signature), bytes.fromhex(row.hash))
        except (InvalidSignature, ValueError):
            return False
        return True

    return signed


def _read(key_file: Path | None) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key((key_file or Path("no key file")).read_bytes(), password=None)
    except OSError as problem:
        raise FileFormatError(
            f"cannot read the signing key {key_file}: {problem.strerror or problem}", hint="--key-file FILE"
        ) from None
    except ValueError as problem:
        raise FileFormatError(f"{key_file} is no signing key: {problem}") from None
