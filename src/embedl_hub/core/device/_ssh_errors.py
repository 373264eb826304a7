"""What ssh complains about, as one clear error with the next step."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from embedl_hub.errors import ConnectError

if TYPE_CHECKING:
    from embedl_hub.core.device._ssh_config import SSHConfig

_MOST_CHARACTERS = 600


def explain_connect_failure(config: SSHConfig, complaint: str) -> ConnectError:
    """Return the error for a connection that ssh could not make."""
    place, host, port = config.place, config.host, config.port
    at_port = f"-p {port} " if port else ""
    lookup = f"[{host}]:{port}" if port and port != 22 else host
    table = {
        r"IDENTIFICATION HAS CHANGED|Host key for .* has changed": (
            f"The host key of {place} is not the one known for it: the board was re-installed, or somebody poses as "
            f"it. Compare fingerprints at the board's console; if it is right: ssh-keygen -R '{lookup}', then connect "
            "once by hand with ssh to accept the new key."
        ),
        r"No .* host key is known|Host key verification failed": (
            f"The host key of {place} is not known here. Compare it at the board's console, then connect once by "
            f"hand: ssh {at_port}{host}; or set SSHConfig(host_key='accept_new') to trust new boards at first sight."
        ),
        r"Permission denied": (
            f"{place} refused the login. Install your key there with: ssh-copy-id {at_port}{host}; "
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
