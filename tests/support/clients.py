"""A Python process of its own that uses a board, to be killed, stopped or interrupted."""

import pickle
import subprocess
import sys

from embedl_hub.core.device import SSHConfig

_OPENING = """\
import pickle, sys, time
from embedl_hub.core.device import LocalCommandRunner, SSHCommandRunner
config = pickle.loads(bytes.fromhex(sys.argv[1]))
runner = LocalCommandRunner() if config is None else SSHCommandRunner(config)
"""


def start_client(config: SSHConfig | None, code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start Python code that finds its ``runner`` made (without a config the local one) and ``sys.argv[2:]`` given."""
    return subprocess.Popen(
        [sys.executable, "-c", _OPENING + code, pickle.dumps(config).hex(), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def line_of(client: subprocess.Popen[str]) -> str:
    """Return the next line a client prints."""
    assert client.stdout is not None
    return client.stdout.readline().strip()
