"""How to reach a board by SSH, and what ssh's complaints mean."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from embedl_hub.errors import ConfigError, ConnectError

if TYPE_CHECKING:
    from embedl_hub.core.device._runner import AnyPath


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str) or not text or text.startswith("-") or any(c.isspace() or c in "\0'\"" for c in text):
        raise ConfigError(f"SSHConfig.{name} is {text!r}; it must be a plain name or address.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class SSHConfig:
    """How to reach a board. Everything not given comes from the user's ssh configuration."""

    host: str  # host name, address or an alias of the user's ssh configuration
    username: str | None = None  # login name
    port: int | None = None  # port
    identity_file: AnyPath | None = None  # private key; agent and default keys are used as well
    jump_host: str | None = None  # ``[user@]host[:port]`` to go through, as for ``ssh -J``
    # ``strict`` accepts only known host keys; ``accept_new`` also trusts a host seen for the first time; ``off`` checks
    # nothing and warns: for a closed lab only.
    host_key: Literal["strict", "accept_new", "off"] = "strict"
    known_hosts: AnyPath | None = None  # another known_hosts file than the user's
    config_file: AnyPath | None = None  # another ssh configuration than the user's
    connect_timeout_s: float = 10.0  # limit for making the connection
    command_timeout_s: float = 3600.0  # limit for a command that is not given its own
    keep_alive_s: int = 5  # a silent connection is tested this often; three silent tests end it

    def __post_init__(self) -> None:
        _check_text("host", self.host)
        if "@" in self.host or self.host.count(":") == 1:
            raise ConfigError(
                f"SSHConfig.host is {self.host!r}; give the parts: SSHConfig(host=..., username=..., port=...)."
            )
        for name in ("username", "jump_host"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))
        if self.port is not None and (not _is_number(self.port) or not 0 < self.port < 65536):
            raise ConfigError(f"SSHConfig.port is {self.port!r}; it must be a number between 1 and 65535.")
        for name in ("identity_file", "config_file"):
            path = getattr(self, name)
            if path is not None and path != "none" and not Path(path).expanduser().exists():
                raise ConfigError(f"SSHConfig.{name} is {os.fspath(path)!r}; there is no such file.")
        if self.host_key not in ("strict", "accept_new", "off"):
            raise ConfigError(f"SSHConfig.host_key is {self.host_key!r}; known: 'strict', 'accept_new', 'off'.")
        for name in ("connect_timeout_s", "command_timeout_s", "keep_alive_s"):
            value = getattr(self, name)
            if not _is_number(value) or value <= 0:
                raise ConfigError(f"SSHConfig.{name} is {value!r}; it must be a positive number.")

    @property
    def place(self) -> str:
        """The board as a user would name it."""
        user = f"{self.username}@" if self.username else ""
        return f"{user}{self.host}{f':{self.port}' if self.port else ''}"

    def options(self) -> list[str]:
        """Return the ssh arguments that make the connection."""
        checking = {"strict": "yes", "accept_new": "accept-new", "off": "no"}[self.host_key]
        settings = {
            "BatchMode": "yes", "StrictHostKeyChecking": checking,
            "ConnectTimeout": str(max(1, round(self.connect_timeout_s))),
            "ServerAliveInterval": str(self.keep_alive_s), "ServerAliveCountMax": "3",
            # What a user set for interactive work must not reach ours.
            "RemoteCommand": "none", "RequestTTY": "no", "PermitLocalCommand": "no", "ClearAllForwardings": "yes",
            "LogLevel": "ERROR",
        }  # fmt: skip
        if self.host_key == "off":
            settings["UserKnownHostsFile"] = "/dev/null"
        elif self.known_hosts is not None:
            # ssh takes a list of files here, and reads %-signs: the path is one file and its own text.
            settings["UserKnownHostsFile"] = '"' + os.fspath(self.known_hosts).replace("%", "%%") + '"'
        options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        return [*options, *self.flags("-F", "-l", "-p", "-i", "-J")]

    def flags(self, *names: str) -> list[str]:
        """Return those of these ssh flags that have a value, with it."""
        values = {
            "-F": self.config_file, "-l": self.username, "-p": self.port, "-i": self.identity_file,
            "-J": self.jump_host,
        }  # fmt: skip
        return [word for name in names if (value := values[name]) is not None for word in (name, str(value))]


_MOST_CHARACTERS = 600


def explain_connect_failure(config: SSHConfig, complaint: str) -> ConnectError:
    """Return the error for a connection that ssh could not make."""
    place, host, port = config.place, config.host, config.port
    lookup = f"[{host}]:{port}" if port and port != 22 else host
    known = f" -f {shlex.quote(os.fspath(config.known_hosts))}" if config.known_hosts is not None else ""
    login = f"{config.username}@{host}" if config.username else host
    trust = [] if config.known_hosts is None else ["-o", f"UserKnownHostsFile={os.fspath(config.known_hosts)}"]
    by_hand = shlex.join(["ssh", *config.flags("-F", "-p", "-i", "-J"), *trust, login])
    copy_key = shlex.join(["ssh-copy-id", *(["-p", str(port)] if port else []), login])
    table = {
        r"IDENTIFICATION HAS CHANGED|Host key for .* has changed": (
            f"The host key of {place} is not the one known for it: the board was re-installed, or somebody poses as "
            f"it. Compare fingerprints at the board's console; if it is right: ssh-keygen -R '{lookup}'{known}, then "
            f"connect once by hand to accept the new key: {by_hand}"
        ),
        r"No .* host key is known|Host key verification failed": (
            f"The host key of {place} is not known here. Compare it at the board's console, then connect once by "
            f"hand: {by_hand}; or set SSHConfig(host_key='accept_new') to trust new boards at first sight."
        ),
        r"Permission denied": (
            f"{place} refused the login. Install your key there with: {copy_key}; "
            "or name the right one with SSHConfig(identity_file=...). Passwords are never asked for here."
        ),
        r"Too many authentication failures": (
            f"{place} saw too many keys. Name the right one with SSHConfig(identity_file=...)."
        ),
        r"Could not resolve hostname": f"{place}: the host name is not known. Check its spelling, or use the address.",
        r"Connection refused": (
            f"{place} refused the connection: nothing listens on that port. Is sshd running there, on that port?"
        ),
        r"during banner exchange": (
            f"{place} accepts the connection but does not speak SSH. Is it the right port, and is sshd there well?"
        ),
        r"timed out|No route to host|Network is unreachable|Host is down": (
            f"{place} cannot be reached. Is the board on, and is it the right address and network?"
        ),
        r"Connection (closed|reset)|kex_exchange_identification": (
            f"{place} closed the connection during the login. Is it really an SSH server, or is it overloaded?"
        ),
        r"Bad owner or permissions|UNPROTECTED PRIVATE KEY": f"ssh refuses a file of yours on the way to {place}.",
        r"Bad configuration option|Unsupported option": f"ssh does not understand its configuration for {place}.",
    }
    # The end of the complaint, in whole lines as far as they are not endless.
    lines = complaint.strip()[-_MOST_CHARACTERS:].splitlines()
    detail = "\n".join(lines[1:] if len(complaint.strip()) > _MOST_CHARACTERS and len(lines) > 1 else lines)
    if config.jump_host:
        detail += (
            f"\nThe way goes through {config.jump_host}, and this may be about that host: try ssh {config.jump_host}"
        )
    for pattern, explanation in table.items():
        if re.search(pattern, complaint):
            return ConnectError(f"{explanation}\nssh said: {detail}")
    return ConnectError(f"No connection to {place}.\nssh said: {detail or 'nothing'}")
