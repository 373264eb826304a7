"""What ssh complains about, as one clear error with the next step."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

from embedl_hub.errors import ConnectError

if TYPE_CHECKING:
    from embedl_hub.core.device._ssh_config import SSHConfig

_MOST_CHARACTERS = 600


def explain_connect_failure(config: SSHConfig, complaint: str) -> ConnectError:
    """Return the error for a connection that ssh could not make."""
    place, host, port = config.place, config.host, config.port
    lookup = f"[{host}]:{port}" if port and port != 22 else host
    known = f" -f {shlex.quote(os.fspath(config.known_hosts))}" if config.known_hosts is not None else ""
    login = f"{config.username}@{host}" if config.username else host
    by_hand = shlex.join(["ssh", *_own_options(config), login])
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
    detail = "\n".join(_last_lines(complaint))
    if config.jump_host:
        detail += (
            f"\nThe way goes through {config.jump_host}, and this may be about that host: try ssh {config.jump_host}"
        )
    for pattern, explanation in table.items():
        if re.search(pattern, complaint):
            return ConnectError(f"{explanation}\nssh said: {detail}")
    return ConnectError(f"No connection to {place}.\nssh said: {detail or 'nothing'}")


def _last_lines(complaint: str) -> list[str]:
    """Return the end of a complaint, in whole lines as far as they are not endless."""
    lines = complaint.strip()[-_MOST_CHARACTERS:].splitlines()
    return lines[1:] if len(complaint.strip()) > _MOST_CHARACTERS and len(lines) > 1 else lines


def _own_options(config: SSHConfig) -> list[str]:
    """Return the options a user must repeat by hand to make the same connection."""
    options: list[str] = []
    for flag, value in (
        ("-F", config.config_file),
        ("-p", config.port),
        ("-i", config.identity_file),
        ("-J", config.jump_host),
    ):
        if value is not None:
            options += [flag, str(value)]
    if config.known_hosts is not None:
        options += ["-o", f"UserKnownHostsFile={os.fspath(config.known_hosts)}"]
    return options
