"""What is published of the ONNX Runtime invoker, claim by claim: on a board over SSH, and in Qualcomm's cloud."""

from __future__ import annotations

import inspect
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models import images, residual_net, save
from support.qai_hub import TOOLS, StandIn, make_phone, serving

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiledModel, ONNXRuntimeCompiler
from embedl_hub.core.component import ComponentOutput
from embedl_hub.core.device import CommandResult, Device, SSHCommandRunner
from embedl_hub.core.invoke import InvokeError, ONNXRuntimeInvocationResult, ONNXRuntimeInvoker
from embedl_hub.tracking import Run, RunType

Invoked = tuple[ONNXRuntimeInvocationResult, Run, list[list[str]]]


class Listening(SSHCommandRunner):
    """Notes the commands that a board gets."""

    def __init__(self, runner: SSHCommandRunner) -> None:
        super().__init__(runner.config)
        self.commands: list[list[str]] = []

    def run(self, argv: Any, cwd: Any = None, **options: Any) -> CommandResult:
        self.commands.append([str(word) for word in argv])
        return super().run(argv, cwd, **options)


@pytest.fixture
def on_board(
    board: SSHCommandRunner, make_board: Callable[..., Device], model: Path, tmp_path: Path
) -> Iterator[Callable[..., Invoked]]:
    """Invoke on a board; return the result, the run and the commands of the device program."""
    listening = Listening(board)

    def invoke(*, make: Callable[[Device], Device] = lambda device: device, **config: Any) -> Invoked:
        device = make(make_board(listening, **config))
        with HubContext("claims", [device], home=tmp_path / "home") as ctx:
            compiled = ONNXRuntimeCompiler().run(ctx, model)
            result = ONNXRuntimeInvoker().run(ctx, compiled, {"x": images(1)})
            assert ctx.client.store is not None
            run = ctx.client.store.run(str(result.output_file.run_id))
        return result, run, [command for command in listening.commands if "run-inference" in command]

    yield invoke
    listening.close()


def test_it_is_an_inference_step() -> None:
    """Its run type, its options, its result."""
    assert ONNXRuntimeInvoker.run_type is RunType.INFERENCE
    options = {"device": None, "use_compiled_names": False}
    for function in (ONNXRuntimeInvoker.run, ONNXRuntimeInvoker):
        parameters = inspect.signature(function).parameters
        assert options.items() <= {name: each.default for name, each in parameters.items()}.items()
    assert issubclass(ONNXRuntimeInvocationResult, ComponentOutput)
    assert {"output", "output_file"} <= set(ONNXRuntimeInvocationResult.__dataclass_fields__)


def test_what_the_constructor_is_given_is_the_default_of_every_call(here: Device, model: Path, tmp_path: Path) -> None:
    """And a call may say otherwise."""
    with HubContext("claims", [here], home=tmp_path / "home") as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        invoker = ONNXRuntimeInvoker(use_compiled_names=True)
        assert ctx.client.store is not None
        for given, recorded in (({}, True), ({"use_compiled_names": False}, False)):
            result = invoker.run(ctx, compiled, {"x": images(1)}, **given)  # type: ignore[arg-type]
            run = ctx.client.store.run(str(result.output_file.run_id))
            assert run.params["use_compiled_names"].value is recorded


def test_without_a_device_the_first_compatible_one_is_taken(on_board: Callable[..., Invoked]) -> None:
    """Its name is recorded."""
    assert on_board()[1].device == "board"


def test_a_device_without_a_runner_is_refused_with_a_value_error(
    on_board: Callable[..., Invoked],
) -> None:
    """The message says to give it one."""
    with pytest.raises(ValueError, match="needs a runner"):
        on_board(make=lambda device: replace(device, runner=None))


def test_the_model_is_transferred_by_itself(on_board: Callable[..., Invoked]) -> None:
    """The program gets its path on the board."""
    (command,) = on_board()[2]
    assert "/board/store/" in command[command.index("--model") + 1]


def test_the_input_artifact_is_called_input_and_its_file_input_name(on_board: Callable[..., Invoked]) -> None:
    """Told from what the run makes."""
    result, run, _ = on_board()
    assert run.artifacts["input"].file_name == "input_net.compiled.onnx"
    assert result.output_file.file_name == "output.npz"


def test_the_command_is_run_inference_with_three_folders_and_npz(on_board: Callable[..., Invoked]) -> None:
    """The path of the config first, its arguments last."""
    (command,) = on_board(cli_args=("--threads", "2"))[2]
    assert command[0].endswith("embedl-onnxruntime")
    assert command[1:3] == ["run-inference", "--model"]
    assert command[4] == "--input-dir"
    assert command[6] == "--output-dir"
    assert command[8] == "--use-npz"
    assert command[-2:] == ["--threads", "2"]
    assert command[5].endswith("/input")
    assert command[7].endswith("/output")


def test_runtime_path_and_arguments_are_recorded(on_board: Callable[..., Invoked]) -> None:
    """So that the run can be done again from its record."""
    _, run, ((program, *_),) = on_board(cli_args=("--threads", "2"))
    assert run.params["$runtime"].value == "onnx"
    assert run.params["embedl_onnxruntime_path"].value == program
    assert run.params["cli_args"].value == "--threads 2"
    assert run.params["provider_config"].value["iterations"] == 20  # type: ignore[index, call-overload]


def test_the_output_is_kept_as_one_compressed_npz(on_board: Callable[..., Invoked]) -> None:
    """Under the names of the outputs; compressed where that pays."""
    result, _, _ = on_board()
    with np.load(result.output_file.local()) as arrays:
        np.testing.assert_array_equal(arrays["y"], result.output["y"])
    from embedl_hub.models.calibration import write_npz

    path = result.output_file.local().with_name("zeros.npz")
    write_npz(path, {"zeros": np.zeros(1 << 16), "noise": np.random.default_rng(0).normal(size=1 << 12)})
    with zipfile.ZipFile(path) as archive:
        kinds = {entry.filename: entry.compress_type for entry in archive.infolist()}
    assert kinds == {"zeros.npy": zipfile.ZIP_DEFLATED, "noise.npy": zipfile.ZIP_STORED}


STAND_IN = """\
#!{python}
import sys, numpy as np
words = dict(zip(sys.argv[2::2], sys.argv[3::2]))
if sys.argv[1] != "run-inference":
    sys.exit("another program")
from pathlib import Path
folder = Path(words["--output-dir"])
folder.mkdir(parents=True, exist_ok=True)
{write}
print("done")
"""


@pytest.mark.parametrize(
    ("write", "names"),
    [
        ("np.save(folder / 'a.npy', np.ones(2)); np.save(folder / 'b.npy', np.ones(3))", {"a", "b"}),
        ("np.savez(folder / '1.npz', a=np.ones(2)); np.savez(folder / '2.npz', b=np.ones(3))", {"a", "b"}),
        ("", None),
    ],
)
def test_another_program_of_that_name_answers_with_its_files(
    write: str, names: set[str] | None, board: SSHCommandRunner, make_board: Callable[..., Device], model: Path,
    tmp_path: Path, here: Device,
) -> None:  # fmt: skip
    """Exit code and files are the contract: .npz files are merged, .npy files go by their stems, none is an error."""
    program = tmp_path / "program"
    program.write_text(STAND_IN.format(python=sys.executable, write=write))
    program.chmod(0o755)
    device = make_board(board, embedl_onnxruntime_path=str(program))
    with HubContext("claims", [here, device], home=tmp_path / "home") as ctx:
        compiled = ONNXRuntimeCompiler(device="here").run(ctx, model)
        invoker = ONNXRuntimeInvoker(device="board")
        if names is None:
            with pytest.raises(InvokeError, match=r"wrote no outputs \(.npz or .npy\)"):
                invoker.run(ctx, compiled, {"x": images(1)})
            return
        result = invoker.run(ctx, compiled, {"x": images(1)})
        assert set(result.output) == names
        assert ctx.client.store is not None
        params = ctx.client.store.run(str(result.output_file.run_id)).params
        assert "runtime_version" not in params
        assert "does not say its version" in str(params["runtime_note"].value)


def test_a_command_that_fails_is_an_invoke_error(
    board: SSHCommandRunner, make_board: Callable[..., Device], model: Path, tmp_path: Path, here: Device
) -> None:
    """With what it said."""
    device = make_board(board, embedl_onnxruntime_path="/bin/false")
    with HubContext("claims", [here, device], home=tmp_path / "home") as ctx:
        compiled = ONNXRuntimeCompiler(device="here").run(ctx, model)
        with pytest.raises(InvokeError, match="embedl-onnxruntime run-inference failed on device 'board'"):
            ONNXRuntimeInvoker(device="board").run(ctx, compiled, {"x": images(1)})


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    with serving(tmp_path, monkeypatch) as stand_in:
        yield stand_in


def in_the_cloud(
    home: Path, data: Any, *, names: dict[str, str] | None = None, folder: bool = False, **options: Any
) -> tuple[ONNXRuntimeInvocationResult, Run]:
    """Invoke a compiled model in the cloud; ``names`` are what the compiler made of the tensors' names."""
    with HubContext("claims", [make_phone()], home=home) as ctx:
        path = save(residual_net(), home.parent / "net.onnx")
        if folder:
            (home.parent / "model").mkdir()
            path = path.rename(home.parent / "model" / "net.onnx").parent
        with ctx.client.start_run() as made:
            artifact = made.log_artifact(path, name="path")
        inputs, outputs = {"image": "x"}, {"scores": "y"}
        model = ONNXRuntimeCompiledModel(
            path=artifact,
            input_name_mapping=inputs if names is None else names,
            output_name_mapping=outputs if names is None else names,
        )
        result = ONNXRuntimeInvoker(**options).run(ctx, model, data)
        assert ctx.client.store is not None
        return result, ctx.client.store.run(str(result.output_file.run_id))


@pytest.mark.parametrize("name", ["image", "x"])
def test_original_and_compiled_names_are_taken_and_originals_returned(
    name: str, service: StandIn, tmp_path: Path
) -> None:
    """Unless the names are to be left alone."""
    assert set(in_the_cloud(tmp_path / "home", {name: images(1)})[0].output) == {"scores"}


def test_with_compiled_names_nothing_is_renamed(service: StandIn, tmp_path: Path) -> None:
    """In either direction."""
    result, _ = in_the_cloud(tmp_path / "home", {"x": images(1)}, use_compiled_names=True)
    assert set(result.output) == {"y"}


def test_an_unknown_input_name_lists_the_known_ones(service: StandIn, tmp_path: Path) -> None:
    """Original and compiled."""
    with pytest.raises(InvokeError, match=r"'z' is no input of the model.*'image'.*'x'"):
        in_the_cloud(tmp_path / "home", {"z": images(1)})


def test_the_jobs_id_and_versions_are_recorded(service: StandIn, tmp_path: Path) -> None:
    """Under the names for the page and for people; the runtime's version once the job has finished."""
    _, run = in_the_cloud(tmp_path / "home", {"x": images(1)})
    (job,) = service.jobs
    assert run.params["$qai_hub_job_id"].value == run.params["qai_hub_inference_job_id"].value == job
    assert run.params["runtime_version"].value == dict(TOOLS)["ONNX Runtime"]
    assert run.params["$tool_versions"].value == dict(TOOLS)


def test_a_folder_is_packed_into_one_file_for_the_cloud(service: StandIn, tmp_path: Path) -> None:
    """The service takes one."""
    result, run = in_the_cloud(tmp_path / "home", {"x": images(1)}, folder=True)
    assert run.artifacts["input"].file_name == "input_model"
    assert result.output["scores"].shape == (1, 10)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("refuse inference_job", "the inference job was not accepted"),
        ("fail inference_job", r"inference job j\d+ failed: the chip caught fire"),
        ("empty", r"job j\d+ succeeded but has no output data"),
    ],
)
def test_a_job_that_fails_is_an_invoke_error(fault: str, words: str, service: StandIn, tmp_path: Path) -> None:
    """Not accepted, failed, or without outputs: with the job's id where there is one."""
    service.faults.add(fault)
    with pytest.raises(InvokeError, match=words):
        in_the_cloud(tmp_path / "home", {"x": images(1)})
