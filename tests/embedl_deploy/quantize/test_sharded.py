"""Data in shards, run by threads, processes and Ray: statistics and scales equal one pass to the last bit."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import ray
import torch
from support.deploy_zoo import torchvision_model
from support.quantized_nets import Mixer, residual
from support.ray_nodes import one_node
from torch import fx, nn

from embedl_deploy import transform
from embedl_deploy.backend import Backend
from embedl_deploy.errors import CalibrationError, QuantizationError
from embedl_deploy.nn import QuantStub, WeightQuantizer
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import (
    Calibration,
    Spread,
    calibrate,
    collect,
    collect_sharded,
    insert_qdq,
    over_ray,
    plan_qdq,
)
from embedl_deploy.quantize._sharded import pack, unpack
from embedl_deploy.tensorrt import TENSORRT

SHARDS = 8


def placed(net: nn.Module, args: tuple[torch.Tensor, ...], backend: Backend) -> fx.GraphModule:
    """Return a network with pairs that are not calibrated."""
    model = transform(net, args, backend).model
    return insert_qdq(model, plan_qdq(model, args, backend=backend))


def batches(count: int, *shape: int) -> list[torch.Tensor]:
    """Return batches whose ranges grow, so that bins must be joined."""
    return [torch.randn(shape) * 1.7**number for number in range(count)]


def scales(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return every scale and zero point of a calibrated model."""
    parts = [part for part in model.named_modules() if isinstance(part[1], QuantStub | WeightQuantizer)]
    return {
        f"{name}.{key}": value
        for name, part in parts
        for key, value in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False))
    }


@pytest.fixture(scope="module")
def mobilenet() -> tuple[fx.GraphModule, list[torch.Tensor], Calibration]:
    """A real network, 19 batches, and what one pass over them leaves."""
    torch.set_num_threads(1)
    net, args = torchvision_model("mobilenet_v2", 32)
    model, data = placed(net, args, TENSORRT), batches(19, 2, 3, 32, 32)
    return model, data, collect(model, data)


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spread]:
    """A Ray of processes of its own: one inside this process leaves files open, which is an error here."""
    with one_node(tmp_path_factory.mktemp("ray")) as address:
        yield over_ray(address)
        ray.shutdown()


def with_threads(function: Callable[[Any], Any], items: Iterable[Any], /) -> list[Any]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(function, items))


def with_processes(function: Callable[[Any], Any], items: Iterable[Any], /) -> list[Any]:
    with ProcessPoolExecutor(2) as pool:
        return list(pool.map(function, items))


def backwards(function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterable[Any]:
    return [function(item) for item in items][::-1]


def check_equal(model: fx.GraphModule, whole: Calibration, found: Calibration) -> None:
    """Compare histograms, and the scales that are solved from them."""
    assert found.statistics == whole.statistics
    calibrate(model, whole)
    expected = {name: value.detach().clone() for name, value in scales(model).items()}
    calibrate(model, found)
    assert expected
    assert all(torch.equal(value, expected[name]) for name, value in scales(model).items())


@pytest.mark.parametrize("spread", [map, backwards, with_threads], ids=lambda one: one.__name__)
def test_eight_uneven_shards_are_one_pass(
    mobilenet: tuple[fx.GraphModule, list[torch.Tensor], Calibration], spread: Spread
) -> None:
    """Eight shards of two and three batches, in any order of arrival."""
    model, data, whole = mobilenet
    shards = [data[number::SHARDS] for number in range(SHARDS)]
    assert {len(shard) for shard in shards} == {2, 3}
    check_equal(model, whole, collect_sharded(model, shards, spread=spread))


@pytest.mark.slow
def test_ray_is_one_pass(mobilenet: tuple[fx.GraphModule, list[torch.Tensor], Calibration], on_ray: Spread) -> None:
    """Eight shards as Ray tasks; the number of threads goes with them."""
    model, data, whole = mobilenet
    shards = [data[number::SHARDS] for number in range(SHARDS)]
    check_equal(model, whole, collect_sharded(model, shards, spread=on_ray))


def test_ray_hands_on_what_a_shard_complains_about(on_ray: Spread) -> None:
    """A batch that does not fit is an error of ours, with the batch named."""
    model, value = residual(TENSORRT)
    model = insert_qdq(model, plan_qdq(model, (value,), backend=TENSORRT))
    with pytest.raises(CalibrationError, match="does not take batch 1"):
        collect_sharded(model, [[value], [torch.randn(2, 5)]], spread=on_ray)


def run_normal(seed: int, model: nn.Module) -> None:
    """Make a shard's data where it is needed."""
    model(torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.slow
def test_processes_take_functions_as_shards() -> None:
    """A shard that loads its own data travels as a function."""
    model = placed(Mixer().eval(), (torch.randn(2, 8, 32),), ONNXRUNTIME)
    shards = [partial(run_normal, seed) for seed in range(SHARDS)]

    def run_all(one: nn.Module) -> None:
        for shard in shards:
            shard(one)

    check_equal(model, collect(model, run_all), collect_sharded(model, shards, spread=with_processes))


@pytest.mark.parametrize(
    "name", ["mobilenet_v3_small", pytest.param("vit_b_16", marks=pytest.mark.slow), "shufflenet_v2_x0_5"]
)
@pytest.mark.parametrize("backend", [TENSORRT, ONNXRUNTIME], ids=lambda one: one.name)
def test_what_arrives_is_what_was_sent(name: str, backend: Backend) -> None:
    """A packed model has the same graph, names and answers."""
    net, args = torchvision_model(name)
    model = placed(net, args, backend)
    arrived = unpack(pack(model))
    assert [node.format_node() for node in arrived.graph.nodes] == [node.format_node() for node in model.graph.nodes]
    assert list(arrived.state_dict()) == list(model.state_dict())
    assert collect(arrived, [args[0]]).statistics == collect(model, [args[0]]).statistics
    calibrate(arrived, [args[0]])
    calibrate(model, [args[0]])
    with torch.no_grad():
        assert torch.equal(arrived(*args), model(*args))


def test_a_model_without_pairs_is_refused() -> None:
    with pytest.raises(QuantizationError, match="no quantize/dequantize pairs"):
        collect_sharded(nn.Linear(2, 2), [[torch.randn(1, 2)]])


def test_no_shard_is_an_error() -> None:
    model, value = residual(TENSORRT)
    with pytest.raises(CalibrationError, match="no shard"):
        collect_sharded(insert_qdq(model, plan_qdq(model, (value,), backend=TENSORRT)), [])


def test_what_cannot_be_sent_is_said() -> None:
    """A function without a name of its own stands in the graph."""
    model, value = residual(TENSORRT)
    model = insert_qdq(model, plan_qdq(model, (value,), backend=TENSORRT))
    output = next(node for node in model.graph.nodes if node.op == "output")
    with model.graph.inserting_before(output):
        output.args = (model.graph.call_function(lambda one: one, (output.args[0],)),)
    with pytest.raises(QuantizationError, match="must be importable there"):
        collect_sharded(model, [[value]])
