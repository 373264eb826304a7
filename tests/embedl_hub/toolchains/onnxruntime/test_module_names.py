"""From a network in torch to the time of each of its modules: the names are those of the user's model all the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import helper, load
from support.cli import answer, hub
from support.named_net import NamedNet

from embedl_deploy import transform
from embedl_deploy.export import export_onnx
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import ModulesToSkip, QuantConfig, quantize, sensitivity
from embedl_hub.comparison import compare
from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import Device
from embedl_hub.core.profile import ModuleTimes, ONNXRuntimeProfiler, ONNXRuntimeProfilingResult
from embedl_hub.page import export_comparison, export_run

VALUE = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@dataclass
class Journey:
    """A network, its files, and its profiles by name."""

    network: NamedNet
    folder: Path
    results: dict[str, ONNXRuntimeProfilingResult] = field(default_factory=dict)

    def run_id(self, name: str) -> str:
        """Return the run of a profile."""
        file = self.results[name].output_file
        assert file is not None
        return str(file.run_id)

    def modules(self, name: str) -> ModuleTimes:
        """Return the module table of a profile."""
        found = self.results[name].modules
        assert found is not None
        return found


@pytest.fixture(scope="module")
def journey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journey]:
    """Transform, quantize with one layer left float, export, compile and profile; once for all tests here."""
    from embedl_hub.core.device import ONNXRuntimeConfig

    torch.manual_seed(0)
    made = Journey(NamedNet(loops=True).eval(), tmp_path_factory.mktemp("journey"))
    plain = transform(made.network, (VALUE,), ONNXRUNTIME).model
    skip = QuantConfig(skip=ModulesToSkip.layers("features.1.conv", "head"))
    quantized = quantize(plain, (VALUE,), skip, [VALUE], backend=ONNXRUNTIME)
    costs = sensitivity(quantized, (VALUE,))
    export_onnx(plain, (VALUE,), made.folder / "float.onnx", input_names=["x"])
    export_onnx(quantized, (VALUE,), made.folder / "int8.onnx", dialect="onnxruntime-x86", sensitivity=costs)
    bad = load(made.folder / "float.onnx")
    helper.set_model_props(bad, {"edgeproof.modules": '{"a": 3}'})
    (made.folder / "bad.onnx").write_bytes(bad.SerializeToString())
    config = ONNXRuntimeConfig(threads=1, iterations=5, min_seconds=0.01, max_warmup_seconds=0.1, layer_runs=3)
    here = Device("here", provider_type="local", provider_config=config)
    data = {"x": np.random.default_rng(0).normal(size=(4, 3, 16, 16)).astype(np.float32)}
    with HubContext("names", devices=[here], home=made.folder / "home") as ctx:
        for name, source, samples in (
            ("float", "float", None), ("int8", "int8", None), ("bad", "bad", None), ("hub int8", "float", data),
        ):  # fmt: skip
            compiled = ONNXRuntimeCompiler().run(ctx, made.folder / f"{source}.onnx", calibration_data=samples)
            made.results[name] = ONNXRuntimeProfiler().run(ctx, compiled)
        yield made


@pytest.mark.parametrize("name", ["float", "int8", "hub int8"])
def test_names_are_the_users_and_times_add_up(journey: Journey, name: str) -> None:
    """Shared module, functions, residual sums and the loop included; what the runtime added stands apart."""
    result, modules = journey.results[name], journey.modules(name)
    known = dict(journey.network.named_modules())
    assert {row.name for row in modules.rows} <= set(known)
    assert {one for layer in result.layers for one in layer.modules} <= set(known)
    owners = {row.name for row in modules.costliest}
    assert owners >= {"", "stem.0", "features.0", "features.0.conv", "features.1.conv", "shared", "odd.inner", "head"}
    assert "alias" not in owners
    whole = sum(layer.time_ms or 0.0 for layer in result.layers)
    own = sum(row.own_ms or 0.0 for row in modules.rows)
    assert own + modules.added_ms + modules.unnamed_ms == pytest.approx(whole)
    assert modules.unnamed_ms == 0
    assert modules.added_ms == pytest.approx(sum(one.time_ms or 0 for one in result.layers if one.added_by_runtime))
    times = {row.name: row.time_ms for row in modules.rows}
    assert times["features"] == pytest.approx(times["features.0"] + times["features.1"])
    convolutions = [layer for layer in result.layers if layer.modules[:1] == ("shared",) and "Conv" in layer.op_type]
    assert len(convolutions) == 2


def test_precision_is_what_ran(journey: Journey) -> None:
    """A layer that was left float ran in float, also between pairs.

    What the hub quantizes itself is INT8 though its source says float.
    """
    precisions = {
        name: {row.name: row.precision for row in journey.modules(name).rows} for name in ("float", "int8", "hub int8")
    }
    assert set(precisions["float"].values()) == {"float32", None}
    assert precisions["int8"]["features.0.conv"] == precisions["int8"]["shared"] == "int8"
    assert precisions["int8"]["head"] == "float32"
    assert precisions["int8"]["features.1.conv"] == "float32"
    assert precisions["hub int8"]["features.1.conv"] == "int8"


def test_loss_stands_beside_time(journey: Journey) -> None:
    """As the sensitivity of the quantized model told it; a float layer has none."""
    rows = {row.name: row for row in journey.modules("int8").rows}
    assert sum(row.sensitivity_share or 0 for row in rows.values()) == pytest.approx(1)
    assert rows["features.1.conv"].sensitivity is None
    assert rows["shared"].sensitivity is not None
    assert journey.modules("int8").unit == "noise power / output power"
    assert journey.modules("float").unit is None


def test_a_comparison_says_what_float_costs(journey: Journey) -> None:
    """Times of both runs and the loss, of the same modules; the page and the commands show them."""
    ids = [journey.run_id("float"), journey.run_id("int8")]
    home = journey.folder / "home"
    with HubContext("names", home=home) as ctx:
        store = ctx.client.store
        assert store is not None
        comparison = compare([store.run(one) for one in ids])
        export_comparison(store, ids, journey.folder / "compare.html")
        export_run(store, ids[1], journey.folder / "run.html")
    rows = {row.name: row for row in comparison.modules}
    assert set(rows) <= set(dict(journey.network.named_modules()))
    assert rows["shared"].precisions == ("float32", "int8")
    first = comparison.float_choices[0]
    assert first.extra_ms == pytest.approx(rows[first.name].own_ms[0] - rows[first.name].own_ms[1])  # type: ignore[operator]
    page = (journey.folder / "compare.html").read_text()
    assert first.sentence() in page
    assert "Modules of the network" in (journey.folder / "run.html").read_text()
    shown = hub("compare", *ids, "--home", home)
    assert first.sentence() in shown.stdout
    shown = hub("run", "show", ids[1], "--home", home)
    assert "features.0.conv" in shown.stdout
    assert "first-order noise" in shown.stdout
    told = answer("run", "show", ids[1], "--home", home)
    assert [row["name"] for row in told["modules"]["rows"]] == [row.name for row in journey.modules("int8").rows]


def test_bad_names_do_not_stop_a_profile(journey: Journey) -> None:
    """The layers are all there, and the reason is said."""
    modules = journey.modules("bad")
    assert journey.results["bad"].layers
    assert modules.rows == ()
    assert modules.problem is not None
    assert "edgeproof.modules cannot be read" in modules.problem
    assert modules.unnamed_ms + modules.added_ms == pytest.approx(modules.total_ms)
    shown = hub("run", "show", journey.run_id("bad"), "--home", journey.folder / "home")
    assert "edgeproof.modules cannot be read" in shown.stdout
