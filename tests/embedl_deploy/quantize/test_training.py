"""Training with pairs in place: what is trained is what is exported."""

import copy
from typing import Any

import pytest
import torch
from support.quantized_nets import ratio_db, residual
from torch import fx, nn

from embedl_deploy import transform
from embedl_deploy.backend import Backend
from embedl_deploy.errors import QuantizationError
from embedl_deploy.nn import QuantizableModule, QuantizedConv, QuantizedLayer, QuantStub, WeightQuantizer
from embedl_deploy.nn.quantizers import Mode
from embedl_deploy.onnxruntime import ONNXRUNTIME
from embedl_deploy.quantize import (
    Precision,
    QuantConfig,
    TensorQuantConfig,
    freeze_batch_norm,
    freeze_ranges,
    freeze_weights,
    insert_qdq,
    learn_ranges,
    plan_qdq,
    quantize,
)
from embedl_deploy.tensorrt import TENSORRT

BACKENDS = pytest.mark.parametrize("backend", [TENSORRT, ONNXRUNTIME], ids=lambda one: one.name)


def calibrated(
    backend: Backend = ONNXRUNTIME, config: QuantConfig | None = None
) -> tuple[fx.GraphModule, torch.Tensor]:
    """Return a calibrated network and a batch."""
    model, value = residual(backend)
    return quantize(model, (value,), config, forward_loop=[value], backend=backend), value


def step(
    model: nn.Module, value: torch.Tensor, target: torch.Tensor, rate: float = 1e-3, count: int = 20
) -> list[float]:
    """Take a few steps of an ordinary loop and return the losses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = []
    model.train()
    for _ in range(count):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(value), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    model.eval()
    return losses


@BACKENDS
def test_an_ordinary_loop_lowers_the_loss(backend: Backend) -> None:
    """Gradients reach every weight through the rounding."""
    model, value = calibrated(backend)
    losses = step(model, value, torch.zeros(8, 16))
    assert losses[-1] < 0.5 * losses[0]
    assert all(one.grad is not None and bool(one.grad.abs().sum() > 0) for one in model.parameters() if one.ndim > 1)


def test_train_and_eval_agree_when_statistics_do() -> None:
    """Batch norm over a batch whose statistics are the running ones gives what the folded weights give."""
    model, _ = calibrated()
    layer = model.get_submodule("conv1.conv")
    assert isinstance(layer, QuantizedConv)
    inner = torch.randn(8, 16, 8, 8)
    bn = layer.bn
    assert isinstance(bn, nn.BatchNorm2d)
    assert layer.weight_quantizer is not None
    bn.momentum = 1.0
    layer.train()
    # The statistics decide the folded weights and the folded weights' rounding decides the statistics: iterate.
    with torch.no_grad():
        for _ in range(20):
            trained = layer(inner)
        layer.eval()
        layer.weight_quantizer.calibrate(layer.folded()[0])
        assert ratio_db(trained, layer(inner)) > 40


def test_frozen_batch_norm_trains_what_eval_runs() -> None:
    """With frozen statistics train mode computes exactly what eval mode does, for a target with float sums."""
    model, value = calibrated(TENSORRT)
    freeze_batch_norm(model)
    model.train()
    trained = model(value)
    assert torch.equal(trained, model.eval()(value))


@pytest.mark.parametrize("learned", [False, True])
def test_state_round_trip(learned: bool) -> None:
    """A trained model's state loads into a model that was never calibrated."""
    model, value = residual(ONNXRUNTIME)
    placement = plan_qdq(model, (value,), backend=ONNXRUNTIME)
    trained = quantize(model, (value,), forward_loop=[value], backend=ONNXRUNTIME)
    if learned:
        learn_ranges(trained, weights=True)
    step(trained, value, torch.zeros(8, 16), count=3)
    fresh = insert_qdq(model, placement)
    fresh.load_state_dict(trained.state_dict())
    with torch.no_grad():
        assert torch.equal(fresh.eval()(value), trained(value))


@BACKENDS
def test_state_brings_its_number_formats(backend: Backend) -> None:
    """Whatever signs, widths and blocks the fresh model was made with, codes are read as they were written."""
    config = QuantConfig(weight=TensorQuantConfig(Precision.INT4, per_channel=True, block_size=16))
    model, value = residual(backend)
    trained = quantize(model, (value,), config, forward_loop=[value], backend=backend)
    fresh = insert_qdq(model, plan_qdq(model, (value,), backend=backend), symmetric=not backend.symmetric_activations)
    fresh.load_state_dict(trained.state_dict())
    with torch.no_grad():
        assert torch.equal(fresh.eval()(value), trained(value))


def test_pairs_are_what_the_backend_wants() -> None:
    """A placement carries the backend's word on signs to `insert_qdq`."""
    model, value = residual(ONNXRUNTIME)
    placed = insert_qdq(model, plan_qdq(model, (value,), backend=ONNXRUNTIME))
    assert {part.form.name for part in placed.modules() if isinstance(part, QuantStub)} == {"uint8"}


def test_learned_ranges_move_and_freeze() -> None:
    """Scales become parameters, shared where they were, move with the loss, and stop."""
    model, value = calibrated()
    scales = learn_ranges(model)
    before = [one.detach().clone() for one in scales]
    pool, stem = model.get_submodule("stubs.pool"), model.get_submodule("stubs.stem")
    assert isinstance(pool, QuantStub)
    assert isinstance(stem, QuantStub)
    assert pool.scale is stem.scale
    step(model, value, torch.zeros(8, 16), rate=1e-4)
    assert sum(bool(one != two) for one, two in zip(before, scales, strict=True)) > len(scales) // 2
    with torch.no_grad():
        expected = model(value)
    freeze_ranges(model)
    assert not any(part.learned for part in model.modules() if isinstance(part, QuantStub | WeightQuantizer))
    with torch.no_grad():
        assert torch.equal(model(value), expected)


def test_bounds_follow_a_learned_scale() -> None:
    """What export tells other dialects is the range of the scale as it is."""
    model, _ = calibrated()
    learn_ranges(model)
    stub = model.get_submodule("stubs.x")
    assert isinstance(stub, QuantStub)
    low, high = stub.current_bounds()
    with torch.no_grad():
        stub.scale.mul_(2)
    assert stub.current_bounds() == pytest.approx((2 * low, 2 * high), rel=1e-6)


@BACKENDS
@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT4, Precision.FP8])
def test_freezing_weights_changes_nothing(backend: Backend, precision: Precision) -> None:
    """Baked weights are multiples of their scale and compute what eval mode computed; batch norms are gone."""
    model, value = calibrated(backend, QuantConfig(weight=TensorQuantConfig(precision, per_channel=True)))
    with torch.no_grad():
        expected = model(value)
        freeze_weights(model)
        assert ratio_db(expected, model(value)) > 90
    assert not any(isinstance(part, nn.BatchNorm2d) for part in model.modules())
    again = copy.deepcopy(model)
    freeze_weights(again)
    with torch.no_grad():
        assert torch.equal(again(value), model(value))


def test_quantize_bakes_on_request() -> None:
    """`freeze_weights=True` gives a model without trainable weights in quantized layers."""
    model, value = residual(ONNXRUNTIME)
    found = quantize(model, (value,), None, [value], freeze_weights=True, backend=ONNXRUNTIME)
    assert not any(one.requires_grad for one in found.parameters())


def test_blocks_of_four_bits() -> None:
    """A scale for every 16 inputs; weights that do not divide keep a scale per channel."""
    config = QuantConfig(weight=TensorQuantConfig(Precision.INT4, per_channel=True, block_size=16))
    model, _ = calibrated(config=config)
    quantizer = model.get_submodule("head.linear.weight_quantizer")
    assert isinstance(quantizer, WeightQuantizer)
    assert quantizer.scale.shape == (16, 2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # dynamo instantiates autograd functions to look at them
def test_torch_compile() -> None:
    """A compiled step gives the gradients of an eager one, but for values that lie on the edge of a rounding."""
    small = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1)).eval()
    value = torch.randn(4, 3, 8, 8)
    model = quantize(
        transform(small, (value,), ONNXRUNTIME).model, (value,), None, [value], backend=ONNXRUNTIME
    ).train()
    twin = copy.deepcopy(model)
    torch._dynamo.reset()
    compiled = torch.compile(twin, backend="aot_eager")
    model(value).pow(2).mean().backward()
    compiled(value).pow(2).mean().backward()
    pairs = [(one.grad, two.grad) for one, two in zip(model.parameters(), twin.parameters(), strict=True)]
    gradients = [(one, two) for one, two in pairs if one is not None and two is not None]
    assert len(gradients) == len(pairs)
    # A bias before a batch norm moves nothing: what it gets is the rounding of sums, another on every processor.
    noise = 1e-6 * max(float(one.norm()) for one, _ in gradients)
    moved = [(one, two) for one, two in gradients if max(one.norm(), two.norm()) > noise]
    assert len(moved) == len(pairs) - 1
    assert all(ratio_db(one, two) > 30 for one, two in moved)


def test_a_compiled_step_is_checked_for_plain_facts() -> None:
    """Before a step compilers check all that was read of the model: of ours, no shared objects and no properties."""
    small = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.Flatten(1), nn.Linear(288, 5)
    ).eval()
    value = torch.randn(4, 3, 8, 8)
    fused = transform(small, (value,), ONNXRUNTIME).model
    model = quantize(fused, (value,), None, [value], backend=ONNXRUNTIME).train()
    seen: list[tuple[str, str]] = []

    def keep_all(entries: Any) -> list[bool]:
        seen.extend((entry.guard_type, entry.orig_guard.name) for entry in entries)
        return [True] * len(entries)

    torch._dynamo.reset()
    options: dict[str, Any] = {"guard_filter_fn": keep_all}
    compiled = torch.compile(model, backend="eager", fullgraph=True, options=options)
    compiled(value).sum().backward()
    of_model = [(kind, name) for kind, name in seen if "L['self']" in name]
    assert len(of_model) > 50
    assert [name for kind, name in of_model if kind == "DUPLICATE_INPUT" or "fget" in name] == []
    # A fact that changes is seen: the stub is off, and the step is compiled again.
    before = compiled(value)
    for stub in model.modules():
        if isinstance(stub, QuantStub):
            stub.mode = Mode.FLOAT
    assert not torch.equal(before, compiled(value))


def test_plain_models_are_refused() -> None:
    """There is nothing to learn or to bake."""
    for act in (learn_ranges, freeze_weights, freeze_ranges, freeze_batch_norm):
        with pytest.raises(QuantizationError, match="call quantize"):
            act(nn.Linear(3, 3))


def _trained(model: nn.Module, value: torch.Tensor, *, together: bool, behind: bool) -> list[torch.Tensor]:
    """Return losses, gradients and state after three steps, with or without steps that are taken as one."""
    twin = copy.deepcopy(model).train()
    for part in twin.modules():
        if isinstance(part, QuantizedLayer) and not together:
            part.together = None
        if isinstance(part, QuantizableModule) and not behind:
            part.behind = ()
    optimizer, losses = torch.optim.SGD(twin.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = twin(value).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    state = [part for part in twin.state_dict().values() if isinstance(part, torch.Tensor)]
    return [*losses, *(part.grad for part in twin.parameters() if part.grad is not None), *state]


@BACKENDS
def test_steps_that_are_taken_as_one_change_nothing(backend: Backend) -> None:
    """Weights rounded together and activations rounded in one step give the bits of each by itself."""
    model, value = calibrated(backend)
    expected = _trained(model, value, together=False, behind=False)
    for together, behind in ((True, False), (False, True), (True, True)):
        found = _trained(model, value, together=together, behind=behind)
        assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))
    assert any(part.behind for part in model.modules() if isinstance(part, QuantizableModule))


def test_a_weight_that_was_rounded_ahead_is_not_used_too_late() -> None:
    """A layer that is called alone, again, or after its weight changed rounds what it has then."""
    model, _ = calibrated()
    model.train()
    layers = [part for part in model.modules() if isinstance(part, QuantizedConv)]
    first, second = layers[:2]
    assert first.together is not None
    assert first.together is second.together

    def grad_of(layer: QuantizedConv) -> torch.Tensor:
        layer.source.weight.grad = None
        out = layer(torch.ones(2, layer.source.in_channels, 8, 8))
        out.square().sum().backward()
        return torch.as_tensor(layer.source.weight.grad)

    grad_of(first)  # rounds the second's weight too, and its way back is gone
    grad_of(first)
    before = grad_of(second)
    grad_of(first)
    with torch.no_grad():
        second.source.weight.mul_(3)
    second.together = None
    twin = copy.deepcopy(second)
    second.together = first.together
    assert torch.equal(grad_of(second), grad_of(twin))
    assert not torch.equal(before, torch.as_tensor(second.source.weight.grad))


def test_batches_are_counted_of_the_layers_that_ran() -> None:
    """Counted together, they are in the state and in copies: also where the others of a group are left out."""
    model, _ = calibrated()
    model.train()
    first, second = [part for part in model.modules() if isinstance(part, QuantizedConv)][:2]
    given = torch.ones(2, first.source.in_channels, 8, 8)
    before = int(first.bias_holder.num_batches_tracked)
    for _ in range(3):
        first(given)
    assert first.together is second.together
    assert int(first.state_dict()["bn.num_batches_tracked"]) == before + 3
    first(given)
    twin = copy.deepcopy(model)
    counts = [part.bias_holder.num_batches_tracked for part in twin.modules() if isinstance(part, QuantizedConv)]
    assert [int(count) for count in counts[:2]] == [before + 4, before]


@pytest.mark.parametrize("kind", ["momentum", "hook", "subclass", "forward", "frozen"])
def test_a_batch_norm_that_is_not_as_it_comes_is_called(kind: str) -> None:
    """What somebody changed about it decides, and gradients are those of layers that round by themselves."""
    model, value = calibrated()
    norm = next(part for part in model.modules() if isinstance(part, QuantizedConv)).bias_holder
    called: list[int] = []
    if kind == "momentum":
        norm.momentum = None
    elif kind == "hook":
        norm.register_forward_hook(lambda *_: called.append(1))
    elif kind == "subclass":
        norm.__class__ = type("Own", (nn.BatchNorm2d,), {})
    elif kind == "forward":
        plain = norm.forward

        def counted(given: torch.Tensor) -> Any:
            called.append(1)
            return plain(given)

        norm.forward = counted
    else:
        norm.weight.requires_grad_(False)
    found, expected = (_trained(model, value, together=together, behind=True) for together in (True, False))
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))
    if kind in ("hook", "forward"):
        assert len(called) == 6


def test_a_hook_sees_the_value_before_it_is_rounded() -> None:
    """Where somebody looks at a layer's result, it is not rounded with it."""
    model, value = calibrated()
    model.train()
    layer = next(part for part in model.modules() if isinstance(part, QuantizableModule) and part.behind)
    seen: list[torch.Tensor] = []
    with layer.register_forward_hook(lambda _module, _args, out: seen.append(out.detach().clone())):
        model(value)
    stub = layer.behind[0]
    assert not torch.equal(seen[0], stub.rounded(seen[0]))
