"""Fork in the middle of a run, in the way the second argument names, and log on both sides."""

import os
import signal
import sys
import threading
import warnings
from pathlib import Path

from embedl_hub.errors import TrackingError
from embedl_hub.tracking import Client, Redactor, Store

# Python 3.12 and newer advise against what is tested here.
warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)


def own_run(client: Client, store: Store) -> None:
    """Log runs in the child, before and after the parent has closed everything."""
    parent_closed, closed = os.pipe()
    child_began, began = os.pipe()
    with client.start_run(name="parent") as run:
        run.log_param("before", 1)
        child = os.fork()
        if child == 0:
            os.close(closed)
            with client.start_run(name="early child"):
                pass
            os.write(began, b"x")
            os.read(parent_closed, 1)
            with client.start_run(name="child") as mine:
                client.log_param("from", "child")
                (mine.artifact_dir / "file").write_text("from the child")
                client.log_artifact(mine.artifact_dir / "file")
            client.close()
            store.close()
            os._exit(0)
        os.read(child_began, 1)
        run.log_param("after", 2)
    client.close()
    store.close()
    os.close(closed)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def leave_block(client: Client, store: Store) -> None:
    """Let the child run out of the parent's block, closing the client on its way."""
    with client.start_run(name="parent") as run:
        run.log_param("before", 1)
        child = os.fork()
        if child == 0:
            client.close()
            sys.exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        run.log_param("after", 2)
    client.close()
    sys.exit(code)


def parents_run(client: Client, store: Store) -> None:
    """Let the child log to its parent's run, and print what it is told."""
    with client.start_run(name="parent") as run:
        child = os.fork()
        if child == 0:
            try:
                client.log_param("from", "child")
            except TrackingError as error:
                sys.stdout.write(f"{run.id} {os.getppid()} {os.getpid()} {error}")
                sys.stdout.flush()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    client.close()
    sys.exit(code)


def outlive(client: Client, store: Store) -> None:
    """Kill the parent in the middle of its run while its child lives on."""
    with client.start_run(name="parent") as run:
        run.log_param("before", 1)
        if os.fork() == 0:
            sys.stdout.write("child lives\n")
            sys.stdout.flush()
            sys.stdin.read()
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)


def many(client: Client, store: Store) -> None:
    """Fork again and again while one thread logs and another reads the index."""
    stop = threading.Event()

    def log() -> None:
        with client.start_run(name="thread") as run:
            number = 0
            while not stop.wait(0.0002):
                run.log_metric("m", number, step=number)
                number += 1

    def look() -> None:
        while not stop.wait(0.0002):
            store.runs()

    threads = [threading.Thread(target=work) for work in (log, look)]
    for thread in threads:
        thread.start()
    codes = []
    for number in range(20):
        child = os.fork()
        if child == 0:
            with client.start_run(name="child") as run:
                run.log_param("number", number)
            client.close()
            store.close()
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    stop.set()
    for thread in threads:
        thread.join()
    client.close()
    sys.exit(max(codes))


def memory(client: Client, store: Store) -> None:
    """Close a client without a store in the child; the parent's files must stay."""
    unstored = Client("memory", redactor=Redactor({}))
    with unstored.start_run() as run:
        (run.artifact_dir / "file").write_text("kept")
        child = os.fork()
        if child == 0:
            unstored.close()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write((run.artifact_dir / "file").read_text())
    unstored.close()
    sys.exit(code)


if __name__ == "__main__":
    with Store(Path(sys.argv[1])) as opened:
        globals()[sys.argv[2]](Client("fork", opened, Redactor({})), opened)
