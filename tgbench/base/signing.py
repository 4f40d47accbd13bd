"""Signatures of files that count only where this user's tgbench wrote them.

Some files cannot be checked for less than making them anew takes. They are signed with a key that
stays in the user's cache folder: one that was damaged, edited or written by anybody else has no
signature of it. A signature keeps strangers out, not the user.

Source: HMAC, RFC 2104.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from tgbench.base.atomic import atomic_path
from tgbench.base.errors import ProgramsError
from tgbench.base.files import read_bytes
from tgbench.base.machine import cache_folder

KEY_BYTES = 32


class SigningKey:
    """A secret that files are signed with.

    >>> SigningKey(bytes(32)).signature(b"a file") == SigningKey(bytes(32)).signature(b"another")
    False
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @property
    def name(self) -> str:
        """What tells it from other keys, and nothing of it."""
        return self.signature(b"the name of this key")[:16]

    def signature(self, data: bytes) -> str:
        """Of a file's bytes."""
        return hmac.new(self._secret, data, hashlib.sha256).hexdigest()

    def has_signed(self, data: bytes, signature: str) -> bool:
        """Whether a signature is of this key and these bytes."""
        return hmac.compare_digest(self.signature(data).encode(), signature.encode())


def user_key() -> SigningKey | None:
    """The user's; None before the first one was made. Raises ProgramsError for a damaged one."""
    path = _path()
    try:
        secret = read_bytes(path, KEY_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProgramsError(f"{path}: cannot be read ({error})") from error
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise ProgramsError(f"{path}: damaged; delete it, and save programs anew")
    return SigningKey(secret)


def made_key() -> SigningKey:
    """The user's, made if there is none yet.

    Raises ProgramsError where there can be no such folder, WeightsError where it takes no file.
    """
    found = user_key()
    if found is None:
        _make_folder(_path().parent)
        with atomic_path(_path()) as temporary:
            temporary.chmod(0o600)
            temporary.write_bytes(secrets.token_bytes(KEY_BYTES))
        found = user_key()
        assert found is not None
    return found


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProgramsError(f"{folder}: cannot be made ({error.strerror})") from error


def _path() -> Path:
    return cache_folder() / "signing.key"
