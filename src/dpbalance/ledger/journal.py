"""Who wrote a row, and is it the row that was written? A hash chain, signed with a key that only writers have."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpbalance.errors import AlreadyRegistered, FileFormatError, OptionError
from dpbalance.ledger.page import JournalRow


class Signer:
    """Seals rows with one private key, which is loaded, and compared with its public half, before the first row."""

    def __init__(self, key_file: Path | None, public: str, private: Any = None) -> None:
        self.key_file, self.public, self._private = key_file, public, private

    def seal(self, row: JournalRow) -> JournalRow:
        """The row with its hash and its signature."""
        if self._private is None:
            self._private = _read(self.key_file, self.public)
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
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            raise AlreadyRegistered(
                f"there is a key at {key_file} already",
                hint="--key-file FILE; or removing it, if it is left of an init that was killed and signs no ledger",
            ) from None
        except OSError as problem:
            raise FileFormatError(f"cannot write the key {key_file}: {problem.strerror or problem}") from None
    public: str = private.public_key().public_bytes_raw().hex()
    return Signer(key_file, public, private), public


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


def public_key(text: str) -> str:
    """A public key as `init` prints it."""
    if not re.fullmatch("[0-9a-f]{64}", text.strip().lower()):
        raise OptionError(f"a public key is 64 hexadecimal digits, not {text[:100]!r}")
    return text.strip().lower()


def _read(key_file: Path | None, public: str) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key((key_file or Path("no key file")).read_bytes(), password=None)
    except OSError as problem:
        raise FileFormatError(
            f"cannot read the signing key {key_file}: {problem.strerror or problem}", hint="--key-file FILE"
        ) from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as problem:
        raise FileFormatError(f"{key_file} is no signing key: {problem}", hint="--key-file FILE") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise FileFormatError(f"{key_file} holds a key that is not Ed25519", hint="--key-file FILE")
    found = private.public_key().public_bytes_raw().hex()
    if found != public:
        raise FileFormatError(
            f"{key_file} holds the key of {found}, this ledger is signed by {public}; nothing was written",
            hint="--key-file FILE",
        )
    return private
