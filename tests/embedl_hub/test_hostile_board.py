"""A hostile board, end to end: whatever it does, by a seed, each verb ends soon, in order, and with one clear error."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support import hostile_client
from support.hostile import mutated
from support.models import residual_net, save
from support.sshd import SSHServer

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import AnyPath, CommandResult, Device, EmbedlONNXRuntimeConfig, LocalCommandRunner
from embedl_hub.core.profile import ONNXRuntimePairedProfiler, ONNXRuntimeProfiler
from embedl_hub.errors import HubError

NewServer: TypeAlias = Callable[..., SSHServer]

# Limits of a second, some after one another, three attempts where one is safe to repeat; a busy machine takes longer.
MOST_SECONDS = 30.0
MOST_MORE_MEGABYTES = 256
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def meet(new_server: NewServer, folder: Path, verb: str, first: int, count: int) -> list[dict[str, Any]]:
    """Return how each piece of work ended; fail where one did not end as it should."""
    plan = folder / "user/plan"
    server = new_server(settings=[f"ForceCommand {plan}/door {plan}"], environment={"PATH": "/usr/bin:/bin"})
    arguments = [pickle.dumps(server.config()).hex(), verb, str(folder / "user"), str(first), str(count)]
    done = subprocess.run(
        [sys.executable, hostile_client.__file__, *arguments],
        capture_output=True, text=True, timeout=60 + count * 3, check=False, cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    honest, *endings, last = map(json.loads, done.stdout.splitlines())
    assert len(endings) == count
    for each in endings:
        assert each["is_hub"], f"seed {each['seed']}: {each['error']}: {each['message']}"
        assert not _CONTROLS.search(each["message"]), each
        assert len(each["message"].splitlines()) < 60, each
        assert len(each["message"]) < 10_000, each
        assert each["seconds"] < MOST_SECONDS, each
        assert each["is_untouched"], each
        assert each["is_free"], each
    assert last["memory_mb"] - honest["memory_mb"] < MOST_MORE_MEGABYTES
    slowest = max(each["seconds"] for each in endings)
    failed = sum(bool(each["error"]) for each in endings)
    print(  # noqa: T201 - shown by pytest -rP
        f"{verb}: {count} misbehaviors, {failed} errors, {honest['sessions']} sessions each, {slowest:.1f} s at most, "
        f"{last['memory_mb'] - honest['memory_mb']} MB more than with an honest board"
    )
    return endings


@pytest.mark.parametrize(("verb", "count"), [("transfer", 8), ("lease", 8), ("connect", 20)])
def test_a_hostile_board(new_server: NewServer, tmp_path: Path, verb: str, count: int) -> None:
    """Some of what it can do, every time."""
    assert any(each["error"] for each in meet(new_server, tmp_path, verb, 0, count))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("verb", hostile_client.VERBS)
def test_a_hostile_board_500_times(new_server: NewServer, tmp_path: Path, verb: str) -> None:
    """All that it can do, and then some."""
    assert any(each["error"] for each in meet(new_server, tmp_path, verb, 1000, 500))


class Liar(LocalCommandRunner):
    """A board whose device program answers as it did once, and lies by a seed."""

    def __init__(self) -> None:
        super().__init__()
        self.seed: int | None = None
        self._kept: dict[str, CommandResult] = {}

    def run(
        self, argv: Sequence[AnyPath], cwd: AnyPath | None = None, *, hide: bool = False, timeout_s: float | None = None
    ) -> CommandResult:
        words = [str(word) for word in argv]
        command = next((word for word in words if word in {"profile", "pair"}), None)
        if command is None:
            return super().run(argv, cwd, hide=hide, timeout_s=timeout_s)
        if command not in self._kept:
            self._kept[command] = super().run(argv, cwd, hide=hide, timeout_s=timeout_s)
        if "--keep-trace" in words:
            Path(words[words.index("--keep-trace") + 1]).write_text("[]")
        if self.seed is None:
            return self._kept[command]
        chance = random.Random(self.seed)  # noqa: S311 - to be had again by its seed
        answer: Any = json.loads(self._kept[command].stdout.splitlines()[-1])
        for _ in range(chance.choice([1, 1, 2, 5])):
            answer = mutated(answer, chance)
        return CommandResult(json.dumps(answer) + "\n", "", 0)


@pytest.mark.parametrize("count", [20, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", ["profile", "pair"])
def test_answers_that_lie(tmp_path: Path, verb: str, count: int) -> None:
    """A value of an answer is another, of another kind or missing: it is taken, or there is one clear error."""
    program = str(Path(sys.executable).with_name("embedl-onnxruntime"))
    quick: Any = {"iterations": 10, "min_seconds": 0.01, "max_warmup_seconds": 0.1, "layer_runs": 1, "threads": 1}
    config = EmbedlONNXRuntimeConfig(embedl_onnxruntime_path=program, **quick)
    liar = Liar()
    device = Device("board", liar, provider_type="embedl_onnxruntime", provider_config=config, lease_dir=None,
                    artifact_root=tmp_path / "board")  # fmt: skip
    refused = 0
    with HubContext("lies", [device], home=tmp_path / "home") as ctx:
        model = ONNXRuntimeCompiler().run(ctx, save(residual_net(), tmp_path / "net.onnx"))

        def work() -> str:
            if verb == "pair":
                return repr(ONNXRuntimePairedProfiler().run(ctx, [model, model], samples=10))
            return repr(ONNXRuntimeProfiler().run(ctx, model))

        work()
        for liar.seed in range(count):
            try:
                said = work()
            except HubError as error:
                said, refused = str(error), refused + 1
                assert len(said) < 5000
            assert not _CONTROLS.search(said)
    assert refused > count // 20
