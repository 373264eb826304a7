"""Which server this user writes to, and with which key: from the environment, else from the user's own folder.

Never from a project or a store: those are copied, committed and mailed.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import platformdirs

from embedl_hub.errors import ConfigError
from embedl_hub.paths import SECRET_BYTES, kept_secret, write_private
from embedl_hub.toml import read_toml

__all__ = [
    "INSECURE_VARIABLE",
    "KEY_VARIABLE",
    "URL_VARIABLE",
    "Server",
    "credentials_file",
    "find_server",
    "forget_server",
    "is_loopback",
    "keep_server",
    "own_secret",
]

URL_VARIABLE = "EMBEDL_HUB_API_BASE_URL"
KEY_VARIABLE = "EMBEDL_HUB_API_KEY"
INSECURE_VARIABLE = "EMBEDL_HUB_INSECURE"
_KEY_START = "eh_"


@dataclass(frozen=True)
class Server:
    """A server, the key to it, which is never shown, and where the two were found."""

    url: str
    key: str | None = field(default=None, repr=False)
    source: str = ""
    insecure: bool = False  # whether the key may be sent in plain text to another machine

    def check_way(self) -> None:
        """Refuse to send the key where everybody on the way could read it."""
        parts = urlsplit(self.url)
        if self.insecure or not self.key or parts.scheme == "https" or is_loopback(parts.hostname or ""):
            return
        raise ConfigError(
            f"The key would be sent to {self.url} in plain text, where everybody on the way can read it. Use https://, "
            f"or an SSH tunnel to 127.0.0.1; if the way there is safe, say so: embedl-hub auth {self.url} --insecure, "
            f"or {INSECURE_VARIABLE}=1"
        )


def credentials_file() -> Path:
    """Return the file that holds the server and its key; readable by this user only."""
    return Path(platformdirs.user_config_dir("edgeproof")) / "server.toml"


def find_server() -> Server | None:
    """Return the server in use; what the environment says goes before the file.

    Raises:
        ConfigError: A key would be sent to another machine in plain text, and nobody said that this is meant.
    """
    server = _found()
    if server is not None:
        server.check_way()
    return server


def _found() -> Server | None:
    url, key = os.environ.get(URL_VARIABLE), os.environ.get(KEY_VARIABLE)
    insecure = os.environ.get(INSECURE_VARIABLE, "") not in {"", "0"}
    kept = _kept()
    if url:
        # A kept key belongs to the kept server and must not be sent to another one; what was allowed for it neither.
        own = kept if kept is not None and kept.url == _checked_url(url) else Server(url)
        return Server(_checked_url(url), key or own.key, URL_VARIABLE, insecure or own.insecure)
    if kept is None:
        return None
    return Server(kept.url, key or kept.key, KEY_VARIABLE if key else kept.source, insecure or kept.insecure)


def keep_server(url: str, key: str, *, insecure: bool = False) -> Path:
    """Write the server and its key down for this user alone and return the file.

    ``insecure`` allows the key to be sent in plain text to another machine, where everybody on the way can read it.
    """
    Server(_checked_url(url), key, insecure=insecure).check_way()
    if not key.startswith(_KEY_START) or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"That is no key: keys start with {_KEY_START!r} and are one word. Ask your server's owner.")
    path = credentials_file()
    text = f"url = {_quoted(_checked_url(url))}\nkey = {_quoted(key)}\n{'insecure = true' if insecure else ''}\n"
    try:
        write_private(path, text.encode())
    except OSError as error:
        raise ConfigError(f"The key cannot be kept in {path}: {error}. Use {KEY_VARIABLE} instead.") from error
    return path


@functools.cache
def own_secret() -> bytes:
    """Return random bytes that only this account knows; the same ones each time, where they can be kept."""
    try:
        return kept_secret(Path(platformdirs.user_config_dir("edgeproof")) / "secret")
    except OSError:
        return secrets.token_bytes(SECRET_BYTES)


def forget_server() -> bool:
    """Remove the kept server and key; tell whether there was one."""
    with contextlib.suppress(FileNotFoundError):
        credentials_file().unlink()
        return True
    return False


def _kept() -> Server | None:
    path = credentials_file()
    try:
        values = read_toml(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); remove it with: embedl-hub auth --remove") from error
    url, key = values.get("url"), values.get("key")
    if not isinstance(url, str) or not isinstance(key, str):
        raise ConfigError(f"{path} lacks url or key; write it anew with: embedl-hub auth URL")
    return Server(_checked_url(url), key, str(path), values.get("insecure") is True)


def is_loopback(host: str) -> bool:
    """Tell whether a name or address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _checked_url(url: str) -> str:
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise ConfigError(f"{url!r} is no address of a server; it looks like https://hub.example.org.")
    return url.strip().rstrip("/")


def _quoted(text: str) -> str:
    # Both texts are checked above: neither can hold a quote, a backslash or a line's end that matters to TOML.
    if any(c in text for c in "'\n\r"):
        raise ConfigError("A quote has no place in a server's address or key.")
    return f"'{text}'"
