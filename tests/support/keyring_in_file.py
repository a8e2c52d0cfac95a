"""A keyring for tests, which also another process can use: it keeps its values in a file.

The variable GITGUARD_TEST_KEYRING names the file. If the file's text is LOCKED, the keyring is
locked; if it is SILENT, it does not answer until that changes, or SILENCE seconds have passed;
a file with the suffix ``.asked`` shows that it was asked. One with the suffix ``.refused`` has a
character for each question to the locked keyring.

    PYTHON_KEYRING_BACKEND=tests.support.keyring_in_file.Keyring
"""

import json
import os
import time
from pathlib import Path

from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked, PasswordDeleteError

VARIABLE = "GITGUARD_TEST_KEYRING"
BACKEND = "tests.support.keyring_in_file.Keyring"
LOCKED, SILENT = "locked", "silent"
SILENCE = 60.0
"""Seconds: longer than anything waits for a keyring in a test."""


class Keyring(KeyringBackend):
    """A keyring whose values lie in a file."""

    priority = 1
    name = "test keyring"

    @property
    def _path(self) -> Path:
        return Path(os.environ[VARIABLE])

    def _load(self) -> dict[str, str]:
        text = self._path.read_text() if self._path.exists() else "{}"
        if text == LOCKED:
            with self._path.with_suffix(".refused").open("a") as file:
                file.write("x")
            raise KeyringLocked("locked")
        if text == SILENT:
            self._path.with_suffix(".asked").touch()
        deadline = time.monotonic() + SILENCE
        while text in (SILENT, ""):  # empty: it is being written
            time.sleep(0.05)
            text = self._path.read_text() if time.monotonic() < deadline else "{}"
        return json.loads(text)

    def get_password(self, service: str, username: str) -> str | None:
        return self._load().get(f"{service} {username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        self._path.write_text(json.dumps({**self._load(), f"{service} {username}": password}))

    def delete_password(self, service: str, username: str) -> None:
        values = self._load()
        if f"{service} {username}" not in values:
            raise PasswordDeleteError("not found")
        del values[f"{service} {username}"]
        self._path.write_text(json.dumps(values))
