"""For tests of providers: a board that is a folder, a context that is gone afterwards, the rules they must keep."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from embedl_hub.core import HubContext
from embedl_hub.core.component import CompiledModel, Component, ComponentOutput
from embedl_hub.core.component._dispatch import load_provider
from embedl_hub.core.device import BOARD_LABEL, AnyPath, CommandResult, Device, DeviceSpec, LocalCommandRunner
from embedl_hub.errors import CommandError, ConfigError, HubError, quoted_list
from embedl_hub.tracking import Run, RunStatus, Store, hash_file, walk_files


@dataclass(frozen=True)
class Answer:
    """What the scripted board does when a command starts with certain words."""

    starts_with: Sequence[str]  # the first words of the command, compared one by one
    stdout: str = ""  # what it prints
    stderr: str = ""  # what it complains about
    exit_code: int = 0  # how it ends
    # Called with the command and the board's folder, for a command that writes files.
    does: Callable[[list[str], Path], object] | None = None


@dataclass
class ScriptedRunner:
    """A board that is a folder on this machine and knows the commands it was told.

    Files really move, into and out of ``folder``; absolute remote paths are taken inside it. The hub's own
    housekeeping (run folders, content store) works for real. A command that no answer fits is an error that
    lists the known ones. ``commands`` holds what was asked, in order.
    """

    folder: Path
    answers: Sequence[Answer] = ()
    commands: list[list[str]] = field(default_factory=list)

    def run(
        self, argv: Sequence[AnyPath], cwd: AnyPath | None = None, *, hide: bool = False, timeout_s: float | None = None
    ) -> CommandResult:
        """Answer a command from the script."""
        words = [os.fspath(word) for word in argv]
        if words[:2] == ["sh", "-c"] and words[3:4] == [BOARD_LABEL]:
            return LocalCommandRunner().run(words, cwd, hide=hide, timeout_s=timeout_s)
        self.commands.append(words)
        for answer in self.answers:
            if words[: len(answer.starts_with)] == list(answer.starts_with):
                if answer.does is not None:
                    answer.does(words, self.folder)
                if answer.exit_code:
                    raise CommandError(
                        words, answer.exit_code, answer.stdout, answer.stderr, place="the scripted board"
                    )
                return CommandResult(answer.stdout, answer.stderr, 0)
        expected = quoted_list(" ".join(answer.starts_with) for answer in self.answers)
        raise ConfigError(f"The scripted board was not told what to do with {words}; it knows: {expected}.")

    def put(self, local: AnyPath, remote: AnyPath) -> None:
        """Copy into the board's folder."""
        LocalCommandRunner().put(local, self.place(remote))

    def get(self, remote: AnyPath, local: AnyPath) -> None:
        """Copy out of the board's folder."""
        LocalCommandRunner().get(self.place(remote), local)

    def place(self, remote: AnyPath) -> Path:
        """Return where a remote path is on this machine."""
        path = Path(remote)
        return path if path.is_relative_to(self.folder) else self.folder / str(path).lstrip("/")


def scripted_device(
    folder: Path,
    answers: Sequence[Answer] = (),
    *,
    name: str = "board",
    provider_type: str = "local",
    **settings: Any,  # noqa: ANN401 - any further field of Device
) -> Device:
    """Return a device on a scripted board."""
    runner = ScriptedRunner(folder, answers)
    spec = settings.pop("spec", DeviceSpec(device_name="scripted board"))
    return Device(name, runner, spec, provider_type, artifact_root=folder / "edgeproof", lease_dir=None, **settings)


@contextlib.contextmanager
def temporary_context(
    devices: Sequence[Device] = (), *, project_name: str = "test", tracking: bool = True
) -> Iterator[HubContext]:
    """Open a context with a store of its own that is gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="edgeproof-test-") as home,
        HubContext(project_name, devices, tracking, home=home) as ctx,
    ):
        yield ctx


@dataclass(frozen=True)
class Check:
    """One rule of the conformance check: what must hold, and what was wrong if it did not."""

    rule: str
    fault: str | None = None


class ConformanceError(HubError, AssertionError):
    """A provider breaks rules; the message lists them all, kept and broken."""

    def __init__(self, title: str, checks: Sequence[Check]) -> None:
        self.checks = tuple(checks)
        lines = [f"{'BROKEN' if check.fault else 'kept  '} {check.rule}" for check in checks]
        faults = [f"  {check.rule}: {check.fault}" for check in checks if check.fault]
        super().__init__("\n".join([f"{title} breaks {len(faults)} of {len(checks)} rules:", *lines, "", *faults]))


def check_provider(
    component: Component,
    provider_type: str,
    *args: object,
    devices: Sequence[Device] = (),
    bad_args: Sequence[object] | None = None,
    **options: object,
) -> tuple[Check, ...]:
    """Check that a provider keeps the rules every provider must keep; call it in your own tests.

    Runs the component several times in throw-away stores: tracked, untracked, on two threads at once, and once
    with ``bad_args``.

    Args:
        component: An instance of the component.
        provider_type: The provider under test.
        *args: What ``run`` takes by position after ``ctx``. A compiled model of another context works too.
        devices: The devices for the context; none for a local provider.
        bad_args: Arguments the provider must refuse with an error of the hub's tree; not checked if not given.
        **options: Keywords for ``run``.

    Returns:
        The rules, all kept; a ``ConformanceError`` lists them where at least one is broken.
    """
    _check_subject(component, provider_type)
    bench = _Bench(component, provider_type.replace("-", "_"), args, tuple(devices), options)
    rules: list[tuple[str, Callable[[], object]]] = [
        ("finishes a tracked run", bench.finishes),
        ("is the one the call goes to", bench.is_chosen),
        ("returns the declared output", bench.returns_declared_output),
        ("logs what the output needs, so that it can be rebuilt from the store", bench.rebuilds),
        ("logs its input under 'input'", bench.logs_input),
        ("leaves its input files as they were", bench.leaves_inputs),
        ("leaves working folder and environment as they were", bench.leaves_process),
        ("works with tracking off", bench.works_untracked),
        ("keeps two runs at once apart", bench.keeps_runs_apart),
        ("keeps secrets out of the store", bench.keeps_secrets),
    ]
    if bad_args is not None:
        rules.append(("refuses bad input with a clear error", lambda: bench.refuses(tuple(bad_args))))
    checks = [Check(rule, _fault(test)) for rule, test in rules]
    bench.close()
    if any(check.fault for check in checks):
        raise ConformanceError(f"Provider {provider_type!r} of {type(component).__name__}", checks)
    return tuple(checks)


class _BrokenError(Exception):
    """A rule does not hold; the text says how."""


def _must(holds: bool, fault: str) -> None:
    if not holds:
        raise _BrokenError(fault)


def _check_subject(component: object, provider_type: str) -> None:
    if not isinstance(component, Component):
        raise ConfigError(f"check_provider takes an instance of a component, not {component!r}: write X().")
    kind = provider_type.replace("-", "_")
    if kind not in component.provider_types() and not load_provider(kind):
        types = quoted_list(component.provider_types())
        raise ConfigError(f"{type(component).__name__} has no provider {provider_type!r}; it has: {types}.")


def _fault(test: Callable[[], object]) -> str | None:
    try:
        test()
    except _BrokenError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - the provider under test may raise anything; the report carries it
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
    return None


class _Bench:
    """Runs the provider under test and remembers what the first run left behind."""

    def __init__(
        self,
        component: Component,
        provider_type: str,
        args: tuple[object, ...],
        devices: tuple[Device, ...],
        options: dict[str, object],
    ) -> None:
        self._component, self._type = component, provider_type
        self._args, self._options = args, options
        self._devices = devices
        self._home = Path(tempfile.mkdtemp(prefix="edgeproof-check-"))
        paths = [Path(value) for value in args if isinstance(value, str | Path)]
        self._inputs = {path: _content(path) for path in paths if path.exists()}
        self._surroundings = (Path.cwd(), dict(os.environ))
        self._result: object = None
        self._run: Run | None = None

    def close(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)

    def finishes(self) -> None:
        with HubContext("conformance", self._devices, home=self._home) as ctx:
            self._result = self._call(ctx, self._args)
        with Store(self._home) as store:
            own = [run for run in store.runs() if run.parent_id is None]
            _must(len(own) == 1, f"one call made {len(own)} top-level runs")
            self._run = store.run(own[0].id)
        _must(self._run.status is RunStatus.FINISHED, f"the run is {self._run.status}")

    def is_chosen(self) -> None:
        run = self._finished_run()
        _must(run.provider == self._type, f"the run went to provider {run.provider!r}")

    def returns_declared_output(self) -> None:
        declared = self._declared_output()
        returned = type(self._result)
        _must(
            issubclass(returned, declared),
            f"run is declared to return {declared.__name__}, the provider returned {returned.__name__}",
        )

    def rebuilds(self) -> None:
        run, result = self._finished_run(), self._result
        if not isinstance(result, ComponentOutput):
            raise _BrokenError(f"the result is {type(result).__name__}, not a ComponentOutput")
        rebuilt = type(result).from_run(run)
        if isinstance(result, CompiledModel) and isinstance(rebuilt, CompiledModel):
            _must(rebuilt.path.local().exists(), "the compiled model is not in the store")
            _must(rebuilt.path.size_bytes > 0, "the compiled model is empty")

    def logs_input(self) -> None:
        run = self._finished_run()
        _must(
            "input" in run.artifacts,
            f"it logged the artifacts {quoted_list(run.artifacts)}; write ctx.client.log_artifact(model, name='input')",
        )

    def leaves_inputs(self) -> None:
        for path, before in self._inputs.items():
            _must(path.exists(), f"{path} is gone")
            _must(_content(path) == before, f"{path} has changed")

    def leaves_process(self) -> None:
        folder, environment = self._surroundings
        _must(Path.cwd() == folder, f"the working folder is now {Path.cwd()}")
        changed = {key for key in {*environment, *os.environ} if environment.get(key) != os.environ.get(key)}
        _must(not changed, f"changed in the environment: {quoted_list(changed)}")

    def works_untracked(self) -> None:
        with temporary_context(self._devices, tracking=False) as ctx:
            self._call(ctx, self._args)

    def keeps_runs_apart(self) -> None:
        with temporary_context(self._devices) as ctx:
            with ThreadPoolExecutor(2) as threads:
                calls = [threads.submit(self._call, ctx, self._args) for _ in range(2)]
            for error in filter(None, (call.exception() for call in calls)):
                raise _BrokenError(f"{type(error).__name__}: {error}") from error
            assert ctx.client.store is not None  # noqa: S101 - it tracks
            runs = [run for run in ctx.client.store.runs() if run.parent_id is None]
            _must(len(runs) == 2, f"two calls made {len(runs)} runs")
            _must({run.status for run in runs} == {RunStatus.FINISHED}, f"runs ended {[run.status for run in runs]}")

    def keeps_secrets(self) -> None:
        secret = "edgeproof-conformance-4c1f9a7e"  # noqa: S105 - planted to be found
        os.environ["EDGEPROOF_CHECK_TOKEN"] = secret
        try:
            with tempfile.TemporaryDirectory() as home:
                with HubContext("conformance", self._devices, home=home) as ctx:
                    self._call(ctx, self._args)
                for path in sorted(Path(home).rglob("*")):
                    is_clean = not path.is_file() or secret.encode() not in path.read_bytes()
                    _must(is_clean, f"a secret of the environment stands in {path.relative_to(home)}")
        finally:
            del os.environ["EDGEPROOF_CHECK_TOKEN"]

    def refuses(self, bad_args: tuple[object, ...]) -> None:
        with temporary_context(self._devices) as ctx:
            try:
                self._call(ctx, bad_args)
            except HubError as error:
                _must(bool(str(error).strip()), "the error has no message")
            except Exception as error:
                raise _BrokenError(f"it raised {type(error).__name__}, not an error of the hub: {error}") from error
            else:
                raise _BrokenError(f"it accepted {bad_args!r}")

    def _finished_run(self) -> Run:
        if self._run is None:
            raise _BrokenError("there is no finished run to look at")
        return self._run

    def _call(self, ctx: HubContext, args: tuple[object, ...]) -> object:
        return self._component.run(ctx, *args, **self._options)  # type: ignore[attr-defined]

    def _declared_output(self) -> type:
        run = type(self._component).run  # type: ignore[attr-defined]
        try:
            declared = get_type_hints(run).get("return", ComponentOutput)
        except NameError:
            # Names imported for type checkers only.
            declared = ComponentOutput
        return declared if isinstance(declared, type) else ComponentOutput


def _content(path: Path) -> object:
    return {name: hash_file(file) for name, file in walk_files(path)} if path.is_dir() else hash_file(path)
