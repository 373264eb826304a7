"""A user of a hostile board, in a process of its own: ``python hostile_client.py CONFIG VERB FOLDER FIRST COUNT``.

Prints a line of JSON for the honest board, one for each misbehavior, and one for the end.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pickle
import random
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from embedl_hub.cli import device as device_command
from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler, TensorRTCompiler
from embedl_hub.core.device import (
    Device,
    EmbedlONNXRuntimeConfig,
    LocalCommandRunner,
    SSHCommandRunner,
    SSHConfig,
    TrtexecConfig,
    _board,
    _lease,
    _process,
    _ssh_connection,
    _ssh_transfer,
)
from embedl_hub.core.invoke import ONNXRuntimeInvoker
from embedl_hub.core.profile import ONNXRuntimeProfiler
from embedl_hub.errors import ConnectError, HubError
from embedl_hub.toolchains.tensorrt import compile as trt_compile
from embedl_hub.toolchains.tensorrt import program as trt_program
from support import trtexec
from support.hostile import Plan, hostile_host, replaying
from support.models import images, residual_net, save

LIMIT_S = 1.0
VERBS = ("compile", "profile", "invoke", "test", "transfer", "lease", "connect")


def hurry() -> None:
    """Have every limit come soon: what is tested is that there is one."""
    _process._GRACE_S = 0.3
    _board._QUICK_S = LIMIT_S
    _lease._START_S = LIMIT_S
    _ssh_connection._SHELL_ANSWER_S = LIMIT_S
    _ssh_transfer._STALLED_S = LIMIT_S
    _ssh_transfer._MOST_FETCHED_BYTES = 256 << 20
    device_command._STEP_LIMIT_S = LIMIT_S
    for module in (trt_compile, trt_program):
        vars(module)["_QUICK_S"] = LIMIT_S


class User:
    """Somebody who works with the board."""

    def __init__(self, config: SSHConfig, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.runner = SSHCommandRunner(config)
        self.configs: list[Any] = []
        self.lock, self.root, self.work = folder / "lock", folder / "board", folder / "sandbox/work"
        self.work.mkdir(parents=True)
        (folder / "sandbox/precious").mkdir()
        (folder / "sandbox/precious/secret").write_text("precious")
        self.model = save(residual_net(), folder / "net.onnx")
        self.source = folder / "source"
        (self.source / "sub").mkdir(parents=True)
        (self.source / "sub/file").write_bytes(b"content" * 1000)
        (self.source / "other").write_bytes(b"other")

    def device(self, kind: str, config: Any) -> Device:
        """Return the board as a device."""
        self.configs.append(config)
        return Device(
            "board", self.runner, provider_type=kind, provider_config=config, artifact_root=self.root,
            lease_dir=str(self.lock),
        )  # fmt: skip

    def onnxruntime(self) -> Device:
        """Return the board with a program that answers at once."""
        program = str(Path(sys.executable).with_name("embedl-onnxruntime"))
        path = replaying(self.folder / "programs", "embedl-onnxruntime", program)
        python = self.folder / "programs/python"
        python.write_text("#!/bin/sh\necho 3.11.0\n")
        python.chmod(0o755)
        return self.device(
            "embedl_onnxruntime",
            EmbedlONNXRuntimeConfig(
                embedl_onnxruntime_path=str(path), python_path=str(python), iterations=10, min_seconds=0.01,
                max_warmup_seconds=0.1, layer_runs=1, threads=1,
            ),
        )  # fmt: skip

    def verb(self, name: str) -> Callable[[random.Random], object]:
        """Return what is done again and again."""
        return getattr(self, f"make_{name}")()  # type: ignore[no-any-return]

    def make_compile(self) -> Callable[[random.Random], object]:
        """Build an engine on the board."""
        programs = self.folder / "programs"
        real = trtexec.install(programs / "real", "10.16.0")
        device = self.device("trtexec", TrtexecConfig(str(replaying(programs, "trtexec", str(real)))))

        def compile_there(_: random.Random) -> object:
            shutil.rmtree(self.root, ignore_errors=True)
            with HubContext("hostile", [device], home=self.folder / "home", lease_wait_s=LIMIT_S) as ctx:
                return TensorRTCompiler().run(ctx, self.model)

        return compile_there

    def compiled(self, device: Device) -> Any:
        """Return a model that is compiled, by this machine alone."""
        with HubContext("hostile", [device], home=self.folder / "home") as ctx:
            return ONNXRuntimeCompiler().run(ctx, self.model, device="board")

    def make_profile(self) -> Callable[[random.Random], object]:
        """Profile on the board."""
        device = self.onnxruntime()
        model = self.compiled(device)

        def profile(_: random.Random) -> object:
            with HubContext("hostile", [device], home=self.folder / "home", lease_wait_s=LIMIT_S) as ctx:
                result = ONNXRuntimeProfiler().run(ctx, model)
                repr(result)
                return result.layers

        return profile

    def make_invoke(self) -> Callable[[random.Random], object]:
        """Run a model on the board."""
        device = self.onnxruntime()
        model = self.compiled(device)

        def invoke(_: random.Random) -> object:
            with HubContext("hostile", [device], home=self.folder / "home", lease_wait_s=LIMIT_S) as ctx:
                return np.sum(ONNXRuntimeInvoker().run(ctx, model, {"x": images()}).output["y"])

        return invoke

    def make_test(self) -> Callable[[random.Random], object]:
        """Test the device, as the command does."""
        device = self.onnxruntime()

        def test(_: random.Random) -> object:
            steps = device_command.run_test(device, LIMIT_S)
            assert all(len(step.says) < 10_000 for step in steps)
            if failed := [step.says for step in steps if not step.is_ok]:
                raise ConnectError(failed[0])
            return len(steps)

        return test

    def make_transfer(self) -> Callable[[random.Random], object]:
        """Send and fetch files and folders."""

        def transfer(chance: random.Random) -> None:
            is_folder = chance.random() < 0.6
            there, here = self.root / "there", self.work / "here"
            for path in (there, here):
                shutil.rmtree(path, ignore_errors=True)
                path.unlink(missing_ok=True)
            source = self.source if is_folder else self.source / "other"
            if chance.random() < 0.3:
                self.runner.put(source, there)
            else:
                LocalCommandRunner().put(source, there)
                try:
                    self.runner.get(there, here)
                except HubError:
                    assert not here.exists(), "something was left"
                    raise

        return transfer

    def make_lease(self) -> Callable[[random.Random], object]:
        """Hold the board."""

        def lease(_: random.Random) -> None:
            with self.runner.lease(str(self.lock), "me", wait_s=1):
                self.runner.run(["true"], hide=True, timeout_s=LIMIT_S)

        return lease

    def snapshot(self) -> dict[str, str]:
        """Return everything that the board has no business with."""
        folder = self.folder / "sandbox"
        return {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
            for path in sorted(folder.rglob("*"))
            if not path.is_relative_to(self.work)
        }

    def is_free(self) -> bool:
        """Tell whether nobody holds the lease, or nobody does in a moment."""
        end = time.monotonic() + 6
        while self.lock.exists():
            fd = os.open(self.lock, os.O_RDONLY)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    return False
                time.sleep(0.02)
            else:
                return True
            finally:
                os.close(fd)
        return True


def say(**facts: object) -> None:
    """Print a line for the test."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def memory_mb() -> int:
    """Return the most that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def attempt(seed: int, work: Callable[[random.Random], object]) -> dict[str, object]:
    """Do it once, and return how it ended."""
    started = time.monotonic()
    ending: dict[str, object] = {"seed": seed, "error": "", "message": "", "is_hub": True}
    try:
        work(random.Random(seed))  # noqa: S311 - to be had again by its seed
    except Exception as error:  # noqa: BLE001 - what kind it is, is the question
        ending |= {"error": type(error).__name__, "message": str(error), "is_hub": isinstance(error, HubError)}
        if not isinstance(error, HubError):
            import traceback

            ending["message"] = "".join(traceback.format_exception(error))[-3000:]
    return {**ending, "seconds": round(time.monotonic() - started, 2)}


def meet_board(config: SSHConfig, verb: str, folder: Path, first: int, count: int) -> None:
    """Work with a board that misbehaves in one session of each piece of work."""
    user = User(config, folder, Plan(folder / "plan"))
    work = user.verb(verb)
    # Twice: the first time something is recorded, or asked for once.
    for _ in range(2):
        user.plan.set(0, 0)
        ending = attempt(-1, work)
        assert not ending["error"], ending
    sessions = user.plan.sessions
    before = user.snapshot()
    say(sessions=sessions, memory_mb=memory_mb())
    hurry()
    for each in user.configs:
        object.__setattr__(each, "timeout_s", LIMIT_S)
    for seed in range(first, first + count):
        chance = random.Random(seed)  # noqa: S311 - to be had again by its seed
        chosen = chance.randrange(1, sessions + 1)
        if chance.random() < 0.1:
            user.runner.close()
            chosen = chance.choice([1, chosen])
        user.plan.set(chosen, seed)
        ending = attempt(seed, work)
        user.plan.set(0, 0)
        say(**ending, is_untouched=user.snapshot() == before, is_free=user.is_free())
    user.runner.close()


def meet_host(config: SSHConfig, first: int, count: int) -> None:
    """Connect to what is no board at all."""
    import dataclasses

    say(sessions=1, memory_mb=memory_mb())
    hurry()
    with hostile_host() as (port, choose):
        runner = SSHCommandRunner(dataclasses.replace(config, port=port, connect_timeout_s=1.0))
        for seed in range(first, first + count):
            choose(seed)
            ending = attempt(seed, lambda _: runner.run(["true"], hide=True))
            say(**ending, is_untouched=True, is_free=True)
        runner.close()


def main() -> None:
    """Do what the test asked for."""
    config: SSHConfig = pickle.loads(bytes.fromhex(sys.argv[1]))  # noqa: S301 - the test's own
    verb, folder, first, count = sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
    if verb == "connect":
        meet_host(config, first, count)
    else:
        meet_board(config, verb, folder, first, count)
    say(memory_mb=memory_mb())


if __name__ == "__main__":
    main()
