"""A server for a team: two people record with keys of their own, one of them while the server is away.

    python examples/team_server/main.py           plays it through and stops
    python examples/team_server/main.py --stay    goes on serving, so that you can look at the page

Everything is kept in the folder `team`.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from embedl_hub.core import HubContext
from embedl_hub.server import KeyRing
from embedl_hub.tracking import project_id

PROJECT = "vision"


@contextlib.contextmanager
def serving(home: Path, port: int) -> Iterator[str]:
    """Run ``embedl-hub serve`` in a process of its own; yields its address."""
    argv = [sys.executable, "-m", "embedl_hub", "serve", "--home", str(home), "--port", str(port)]
    address = f"http://127.0.0.1:{port}"
    with (home.parent / "server.log").open("a") as log, subprocess.Popen(argv, stderr=log) as process:
        try:
            while not is_up(address):
                if process.poll() is not None:
                    sys.exit(f"The server did not start; see {log.name}.")
                time.sleep(0.05)
            yield address
        finally:
            process.terminate()


def is_up(address: str) -> bool:
    """Ask whether the server can be used."""
    try:
        with urllib.request.urlopen(f"{address}/healthz", timeout=5):  # noqa: S310 - our own server
            return True
    except OSError:
        return False


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def record(person: str, latency_ms: float, home: Path) -> None:
    """Record a run as any client does; where the server is comes from the environment."""
    with HubContext(PROJECT, home=home) as ctx, ctx.client.start_run(name=f"{person}'s run") as run:
        run.log_metric("latency", latency_ms)


def server_runs(address: str, key: str) -> list[tuple[str, float]]:
    """Ask the server for the runs of the project: name and latency."""
    url = f"{address}/api/projects/{project_id(PROJECT)}/runs?include=metrics&order=metrics.latency"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})  # noqa: S310 - our own server
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        items = json.load(answer)["data"]["items"]
    return [(item["name"], item["metrics"][0]["value"]) for item in items]


def use(address: str, key: str) -> None:
    """Point this process at the server; `embedl-hub auth` keeps the same for a user."""
    os.environ.update({"EMBEDL_HUB_API_BASE_URL": address, "EMBEDL_HUB_API_KEY": key})


def main() -> None:
    """Play it through."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stay", action="store_true", help="go on serving until Ctrl-C")
    stay = parser.parse_args().stay
    folder = Path("team").resolve()
    keys = KeyRing(folder / "server")
    ann, ben = (keys.add(name, [PROJECT], "write")[1] for name in ("ann", "ben"))
    reader = keys.add("dashboard", [PROJECT], "read")[1]

    port = free_port()
    with serving(folder / "server", port) as address:
        use(address, ann)
        record("ann", 2.5, folder / "ann")
        print("with the server there:", server_runs(address, reader))

    use(address, ben)
    record("ben", 1.5, folder / "ben")
    print("the server was away; ben's run is in his own store")

    with serving(folder / "server", port):
        subprocess.run([sys.executable, "-m", "embedl_hub", "sync", "--home", folder / "ben"], check=True, timeout=60)
        print("after ben's sync:", server_runs(address, reader))
        print("page:", address, "- sign in with a key, for example", reader)
        if stay:
            with contextlib.suppress(KeyboardInterrupt):
                sys.stdin.read()


if __name__ == "__main__":
    main()
