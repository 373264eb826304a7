"""Invoking: data checked before anything moves, outputs as arrays and as a file, held against a reference."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.models import images, save, two_input_net

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import Device, SSHCommandRunner
from embedl_hub.core.invoke import InvokeError, ONNXRuntimeInvocationResult, ONNXRuntimeInvoker
from embedl_hub.errors import ConfigError
from embedl_hub.testing import Answer, check_provider, scripted_device, temporary_context
from embedl_hub.tracking import RunType, Store


def test_the_providers_conform(device: Device, model: Path) -> None:
    """Both keep every rule we ask of others."""
    with temporary_context() as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        check_provider(
            ONNXRuntimeInvoker(),
            device.provider_type,
            compiled,
            {"x": images(1)},
            devices=[device],
            bad_args=[compiled, {"z": images(1)}],
        )


def test_outputs_are_the_runtimes_own(device: Device, model: Path) -> None:
    """Bit for bit those of the compiled file in a session of the same settings; and kept as a file."""
    data = {"x": images(1)}
    with temporary_context([device]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        result = ONNXRuntimeInvoker().run(ctx, compiled, data)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        expected = onnxruntime.InferenceSession(compiled.path.local(), options).run(None, data)[0]
        np.testing.assert_array_equal(result.output["y"], expected)
        rebuilt = ONNXRuntimeInvocationResult.from_run(ctx.client.store.run(result.output_file.run_id))  # type: ignore[union-attr]
        np.testing.assert_array_equal(rebuilt.output["y"], expected)
        stored = ctx.client.store.run(result.output_file.run_id)  # type: ignore[union-attr]
        assert stored.params["precision"].value == "float32"


def test_here_and_there_answer_the_same(
    here: Device, board: SSHCommandRunner, make_board: Any, tmp_path: Path, model: Path
) -> None:
    """One code path: local and remote outputs are bit-equal."""
    with HubContext("both", [here, make_board(board)], home=tmp_path / "home") as ctx:
        outputs = []
        for name in ("here", "board"):
            compiled = ONNXRuntimeCompiler(device=name).run(ctx, model)
            outputs.append(ONNXRuntimeInvoker(device=name).run(ctx, compiled, {"x": images(3)}).output["y"])
        np.testing.assert_array_equal(outputs[0], outputs[1])


def test_batches_go_through_a_model_of_one(device: Device, model: Path) -> None:
    """Whole batches in, one array out."""
    with temporary_context([device]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        many = ONNXRuntimeInvoker().run(ctx, compiled, {"x": images(5)}).output["y"]
        one = ONNXRuntimeInvoker().run(ctx, compiled, {"x": images(5)[3:4]}).output["y"]
        assert many.shape == (5, 10)
        np.testing.assert_array_equal(many[3:4], one)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"z": images(1)}, ["'x' is missing", "'z' is not an input", "x float32[1, 3, 16, 16]"]),
        ({"x": images(1).astype(np.float64)}, ["'x' is float64, the model takes float32"]),
        ({"x": images(1, size=8)}, ["'x' has shape [1, 3, 8, 8], the model takes [1, 3, 16, 16]"]),
        ({"x": images(1)[0]}, ["'x' has shape [3, 16, 16]"]),
        ({"x": images(0)}, ["'x' has shape [0, 3, 16, 16]"]),
        ({}, ["'x' is missing"]),
    ],
)
def test_data_that_does_not_fit_never_leaves(
    data: dict[str, Any], words: list[str], model: Path, tmp_path: Path
) -> None:
    """The board is not asked anything; all faults are told at once."""
    board = scripted_device(tmp_path / "scripted", provider_type="embedl_onnxruntime")
    with temporary_context() as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        with temporary_context([board]) as there:
            with pytest.raises(InvokeError) as caught:
                ONNXRuntimeInvoker().run(there, compiled, data)
            assert all(word in str(caught.value) for word in words)
    assert board.runner.commands == []  # type: ignore[union-attr]


def test_inputs_with_different_batches_are_refused(here: Device, tmp_path: Path) -> None:
    """Two inputs of a fixed batch must hold the same number of them."""
    source = save(two_input_net(), tmp_path / "two.onnx")
    with temporary_context([here]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, source, input_shape=(2, 4))
        data = {"a": np.ones((4, 4), np.float32), "b": np.ones((2, 8), np.float32)}
        with pytest.raises(InvokeError, match=r"different numbers of batches: \[1, 2\]"):
            ONNXRuntimeInvoker().run(ctx, compiled, data)


def test_original_and_compiled_names(here: Device, model: Path) -> None:
    """Either is taken, the original comes back; with use_compiled_names only those of the file count."""
    with temporary_context([here]) as ctx:
        compiled = replace(
            ONNXRuntimeCompiler().run(ctx, model),
            input_name_mapping={"image": "x"},
            output_name_mapping={"scores": "y"},
        )
        for name in ("image", "x"):
            assert set(ONNXRuntimeInvoker().run(ctx, compiled, {name: images(1)}).output) == {"scores"}
        plain = ONNXRuntimeInvoker(use_compiled_names=True)
        assert set(plain.run(ctx, compiled, {"x": images(1)}).output) == {"y"}
        with pytest.raises(InvokeError, match="'image' is not an input"):
            plain.run(ctx, compiled, {"image": images(1)})
        with pytest.raises(InvokeError, match="inputs were called 'image', the compiler made 'x'"):
            ONNXRuntimeInvoker().run(ctx, compiled, {"z": images(1)})
        with pytest.raises(InvokeError, match="'x' is given twice"):
            ONNXRuntimeInvoker().run(ctx, compiled, {"x": images(1), "image": images(1)})


def test_the_command_is_the_published_one(model: Path, tmp_path: Path) -> None:
    """As boards with a program of their own know it: path, verb, flags, the user's further arguments."""
    answers = [Answer(["/opt/ort", "run-inference"], stdout='{"files": []}\n', does=_write_output)]
    from embedl_hub.core.device import EmbedlONNXRuntimeConfig

    board = scripted_device(
        tmp_path / "scripted",
        answers,
        provider_type="embedl-onnxruntime",
        provider_config=EmbedlONNXRuntimeConfig("/opt/ort", ("--threads", "2")),
    )
    with temporary_context() as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        with temporary_context([board]) as there:
            result = ONNXRuntimeInvoker().run(there, compiled, {"x": images(1)})
    assert result.output["y"].tolist() == [1.0]
    (command,) = board.runner.commands  # type: ignore[union-attr]
    assert command[:2] == ["/opt/ort", "run-inference"]
    assert command[2::2][:3] == ["--model", "--input-dir", "--output-dir"]
    assert command[8:] == ["--use-npz", "--threads", "2"]


def _write_output(argv: list[str], folder: Path) -> None:
    target = Path(argv[argv.index("--output-dir") + 1])
    target.mkdir(parents=True)
    np.save(target / "y.npy", np.ones(1))


def test_a_result_is_held_against_arrays_or_a_model(device: Device, model: Path, tmp_path: Path) -> None:
    """And the difference is a run of its own, tied to the one it judges."""
    home = tmp_path / "home"
    with HubContext("compare", [device], home=home) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        result = ONNXRuntimeInvoker().run(ctx, compiled, {"x": images(4)})
        close = result.compare(model)
        assert close.max_abs_error < 1e-5
        assert close.top1_agreement == 1.0
        same = result.compare(compiled)
        assert same.max_abs_error < 1e-6
        off = {"y": np.array(result.output["y"])}
        off["y"][0, 0] += 100.0
        far = result.compare(off)
        assert far.max_abs_error == pytest.approx(100, rel=1e-3)
        assert far.cosine < 0.5
        assert far.top1_agreement is not None
        assert far.top1_agreement <= 1.0
        with pytest.raises(InvokeError, match="cannot be compared with 'z'"):
            result.compare({"z": off["y"]})
        with pytest.raises(InvokeError, match=r"shape \[4, 10\], its reference \[4\]"):
            result.compare({"y": off["y"][:, 0]})
    assert pickle.loads(pickle.dumps(result)).output["y"].shape == (4, 10)  # noqa: S301 - our own
    assert result.compare(off).max_abs_error == far.max_abs_error
    with Store(home) as store:
        records = [store.run(run.id) for run in store.runs() if run.type == RunType.EVAL]
    assert len(records) == 3
    assert {run.tags["compared_run"] for run in records} == {result.output_file.run_id}
    assert records[-1].metric("max_abs_error").value == close.max_abs_error  # type: ignore[union-attr]
    assert "reference" in records[-1].artifacts


def test_special_numbers_compare_as_equal_or_not() -> None:
    """NaN where NaN was expected is agreement; hand-computed figures for the rest."""
    from embedl_hub.core.invoke._invoker import compare_outputs

    one = {"y": np.array([[1.0, np.nan, np.inf]]), "z": np.array([3.0, 4.0])}
    (y, z) = compare_outputs(one, {"y": one["y"].copy(), "z": np.array([3.0, 0.0])}).outputs
    assert y.max_abs_error == 0.0
    assert y.finite_share == pytest.approx(1 / 3, rel=1e-12)
    assert (z.max_abs_error, z.mean_abs_error) == (4.0, 2.0)
    assert z.cosine == pytest.approx(0.6, rel=1e-12)
    assert z.sqnr_db == pytest.approx(10 * np.log10(9 / 16), rel=1e-12)
    assert z.top1_agreement is None
    assert str(compare_outputs({"a": np.ones((2, 3))}, {"a": np.ones((2, 3))})) == (
        "a: max error 0, cosine 1.000000, equal, top-1 agreement 100.0%"
    )


def test_a_local_device_on_a_strange_runner_is_refused(board: SSHCommandRunner, model: Path) -> None:
    """A board is not this machine."""
    odd = Device("odd", board, provider_type="local", lease_dir=None)
    with temporary_context([odd]) as ctx, pytest.raises(ConfigError, match="give a board the type of its toolchain"):
        ONNXRuntimeCompiler().run(ctx, model)
