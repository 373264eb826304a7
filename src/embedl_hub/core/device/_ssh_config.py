"""How to reach a board by SSH."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from embedl_hub.errors import ConfigError

if TYPE_CHECKING:
    from embedl_hub.core.device._runner import AnyPath


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str) or not text or text.startswith("-") or any(c.isspace() or c in "\0'\"" for c in text):
        raise ConfigError(f"SSHConfig.{name} is {text!r}; it must be a plain name or address.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class SSHConfig:
    """How to reach a board. Everything not given comes from the user's ssh configuration.

    Attributes:
        host: Host name, address or an alias of the user's ssh configuration.
        username: Login name.
        port: Port.
        identity_file: Private key; agent and default keys are used as well.
        jump_host: ``[user@]host[:port]`` to go through, as for ``ssh -J``.
        host_key: ``strict`` accepts only known host keys; ``accept_new`` also trusts a host seen for the first
            time; ``off`` checks nothing and warns: for a closed lab only.
        known_hosts: Another known_hosts file than the user's.
        config_file: Another ssh configuration than the user's.
        connect_timeout_s: Limit for making the connection.
        command_timeout_s: Limit for a command that is not given its own.
        keep_alive_s: A silent connection is tested this often; three silent tests end it.
    """

    host: str
    username: str | None = None
    port: int | None = None
    identity_file: AnyPath | None = None
    jump_host: str | None = None
    host_key: Literal["strict", "accept_new", "off"] = "strict"
    known_hosts: AnyPath | None = None
    config_file: AnyPath | None = None
    connect_timeout_s: float = 10.0
    command_timeout_s: float = 3600.0
    keep_alive_s: int = 5

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
            "BatchMode": "yes",
            "StrictHostKeyChecking": checking,
            "ConnectTimeout": str(max(1, round(self.connect_timeout_s))),
            "ServerAliveInterval": str(self.keep_alive_s),
            "ServerAliveCountMax": "3",
            # What a user set for interactive work must not reach ours.
            "RemoteCommand": "none",
            "RequestTTY": "no",
            "PermitLocalCommand": "no",
            "ClearAllForwardings": "yes",
            "LogLevel": "ERROR",
        }
        if self.host_key == "off":
            settings["UserKnownHostsFile"] = "/dev/null"
        elif self.known_hosts is not None:
            # ssh takes a list of files here, and reads %-signs: the path is one file and its own text.
            settings["UserKnownHostsFile"] = '"' + os.fspath(self.known_hosts).replace("%", "%%") + '"'
        arguments = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        for flag, value in (
            ("-F", self.config_file),
            ("-l", self.username),
            ("-p", self.port),
            ("-i", self.identity_file),
            ("-J", self.jump_host),
        ):
            if value is not None:
                arguments += [flag, os.fspath(value) if not isinstance(value, int) else str(value)]
        return arguments
