"""Networks on which rules of dialects are judged: quantized by ONNX Runtime's own tools, for others lowered by us.

None of them teaches a rule: rules are learned from graphs of one operator. `DEVELOPED` were looked at while the facts
that rules speak of were chosen; `LOOKED_AT`, thirty or so at a time, once the rules had been judged on them: the rules
of OpenVINO and LiteRT are better for it, those of ONNX Runtime did not change.
`HELD_OUT`, others, were fixed before a runtime was asked about any of them, and are reported alone: twice the first
thirty of a list that could be written as ONNX. The committed result is the first look at them.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cache
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from deploy import runtime_nets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import numpy as np

DEVELOPED = (
    *(f"own/{name}" for name in runtime_nets.NETWORKS),
    "torchvision/efficientnet_b0", "timm/efficientvit_b0", "timm/mobileone_s0", "timm/resnest14d", "timm/rexnet_100",
    "timm/skresnet18", "timm/visformer_tiny", "timm/xcit_nano_12_p16_224", "hugging_face/vit",
)  # fmt: skip
LOOKED_AT = (
    "torchvision/mobilenet_v2", "torchvision/mobilenet_v3_small", "torchvision/shufflenet_v2_x0_5",
    "torchvision/squeezenet1_1", "torchvision/mnasnet0_5", "torchvision/resnet18", "torchvision/regnet_y_400mf",
    "torchvision/googlenet", "torchvision/lraspp_mobilenet_v3_large", "torchvision/densenet121", "timm/convnext_atto",
    "timm/deit_tiny_patch16_224", "timm/dla46_c", "timm/edgenext_xx_small", "timm/efficientformerv2_s0",
    "timm/fasternet_t0", "timm/fastvit_t8", "timm/ghostnetv2_100", "timm/hgnetv2_b0", "timm/lcnet_050",
    "timm/levit_128s", "timm/mixnet_s", "timm/mobilenetv4_conv_small", "timm/mobilevit_xxs", "timm/poolformer_s12",
    "timm/pvt_v2_b0", "timm/repvit_m0_9", "timm/starnet_s050", "hugging_face/bert", "hugging_face/segformer",
    "timm/cait_xxs24_224", "timm/coat_lite_tiny", "timm/convnextv2_atto", "timm/legacy_seresnet18", "timm/cs3darknet_s",
    "timm/davit_tiny", "timm/efficientformer_l1", "timm/efficientvit_m0", "timm/ese_vovnet19b_dw",
    "timm/focalnet_tiny_srf", "timm/gmlp_ti16_224", "timm/hardcorenas_a", "timm/hrnet_w18_small",
    "timm/inception_next_atto", "timm/mambaout_femto", "timm/mixer_s32_224", "timm/mobilevitv2_050", "timm/nest_tiny",
    "timm/pit_ti_224", "timm/repghostnet_050", "timm/repvgg_a0", "timm/res2net50_14w_8s", "timm/resmlp_12_224",
    "timm/selecsls42b", "timm/shvit_s1", "timm/swiftformer_xs", "timm/tiny_vit_5m_224", "timm/twins_svt_small",
    "timm/xception41", "hugging_face/mobilevit", "timm/botnet26t_256", "timm/caformer_s18", "timm/coatnet_nano_rw_224",
    "timm/convit_tiny", "timm/swin_tiny_patch4_window7_224", "timm/cspresnet50", "timm/dpn48b",
    "timm/eva02_tiny_patch14_224", "timm/gcvit_xxtiny", "timm/hiera_tiny_224", "timm/inception_v4",
    "timm/maxvit_rmlp_pico_rw_256", "timm/mvitv2_tiny", "timm/nextvit_small", "timm/nf_resnet50", "timm/rdnet_tiny",
    "timm/regnety_002", "timm/resnetv2_50", "timm/swinv2_cr_tiny_224", "timm/tnt_s_patch16_224", "timm/tresnet_m",
    "timm/vit_relpos_small_patch16_224", "timm/vitamin_small_224", "torchvision/deeplabv3_mobilenet_v3_large",
    "torchvision/efficientnet_v2_s", "torchvision/resnext50_32x4d", "hugging_face/convnext", "hugging_face/dinov2",
    "hugging_face/resnet", "hugging_face/swin", "timm/lowformer_b0", "timm/cpubone_nano", "timm/fbnetv3_b",
    "timm/inception_v3", "timm/eca_resnext26ts", "timm/ghostnet_100", "timm/tf_efficientnetv2_b0",
    "timm/vit_tiny_patch16_224", "timm/eca_nfnet_l0", "timm/gmixer_12_224", "timm/twins_pcpvt_small", "timm/gernet_s",
    "timm/cspdarknet53", "timm/tinynet_d", "timm/coatnext_nano_rw_224", "timm/convformer_s18", "hugging_face/albert",
    "hugging_face/distilbert", "hugging_face/efficientnet", "hugging_face/glpn", "hugging_face/levit",
    "hugging_face/mobilevitv2", "hugging_face/regnet", "hugging_face/siglip", "hugging_face/yolos",
    "timm/convmixer_768_32", "timm/efficientvim_m1", "timm/lcnetv2_small", "timm/iformer_t", "timm/legacy_xception",
    "timm/mobilenetv3_large_100", "timm/poolformerv2_s12", "timm/resnet26t", "timm/swinv2_tiny_window8_256",
    "timm/regnetz_b16", "timm/lambda_resnet26t", "timm/xception65p", "timm/spnasnet_100", "timm/fbnetc_100",
    "timm/resnetrs50", "timm/maxxvit_rmlp_nano_rw_256", "timm/eca_vovnet39b", "timm/hieradet_small",
    "hugging_face/beit", "hugging_face/convnextv2", "hugging_face/depth_anything", "hugging_face/focalnet",
    "hugging_face/mobilenet_v1", "hugging_face/squeezebert", "hugging_face/pvt_v2", "hugging_face/deit",
    "timm/hgnet_tiny", "timm/seresnext26t_32x4d", "timm/ghostnetv3_100", "timm/resnetaa50",
)  # fmt: skip
_FIRST = (
    "timm/sequencer2d_s", "timm/vit_tiny_r_s16_p8_224", "timm/cs3sedarknet_l", "timm/dla34", "timm/resnetblur18",
    "timm/ecaresnet26t", "timm/efficientnet_lite0", "timm/semnasnet_075", "timm/regnetx_002",
    "timm/deit3_small_patch16_224", "timm/mobilenetv4_hybrid_medium", "timm/gcresnet33ts", "timm/selecsls42",
    "timm/skresnet34", "hugging_face/dpt", "hugging_face/electra", "hugging_face/mobilebert", "hugging_face/roberta",
    "hugging_face/hiera", "hugging_face/poolformer", "hugging_face/mobilenet_v2", "hugging_face/mpnet",
    "hugging_face/ast", "timm/tinynet_e", "timm/efficientvit_b1", "hugging_face/deberta_v2", "timm/hgnetv2_b1",
    "hugging_face/wav2vec2", "timm/darknetaa53", "timm/xcit_tiny_12_p16_224",
)  # fmt: skip
_SECOND = (
    "timm/resnext26ts", "timm/edgenext_small", "timm/fastvit_sa12", "timm/mnasnet_small", "timm/nf_regnet_b0",
    "timm/cs3edgenet_x", "timm/swin_s3_tiny_224", "timm/pit_xs_distilled_224", "timm/starnet_s1",
    "timm/vit_xsmall_patch16_clip_224", "timm/levit_conv_128s", "timm/tf_mixnet_s", "timm/selecsls60",
    "timm/convnext_pico", "hugging_face/convbert", "hugging_face/layoutlm", "hugging_face/xlm_roberta",
    "hugging_face/bloom", "hugging_face/sam", "hugging_face/detr", "hugging_face/t5_encoder", "hugging_face/hubert",
    "hugging_face/videomae", "hugging_face/opt", "hugging_face/modernbert", "hugging_face/data2vec_audio",
    "hugging_face/conditional_detr", "timm/mobilenetv4_conv_medium", "timm/efficientvit_m2", "timm/repvit_m1_0",
)  # fmt: skip
HELD_OUT = (*_FIRST, *_SECOND)
LOOKED_AT_FOR = {"litert": _FIRST}
"""Networks among them whose errors were looked at for a runtime: it is judged on the others."""
DIALECTS = {"ours x86": "onnxruntime-x86", "ours openvino": "openvino", "ours litert": "litert"}
PEERS = {"ort u8s8 per channel": ("QUInt8", True), "ort s8s8": ("QInt8", False)}
SOURCE = "ort u8s8 per channel"
"""What we lower for each runtime."""
FOR = {
    "onnxruntime": tuple(PEERS),
    "openvino": ("ours openvino", *PEERS),
    "litert": ("ours litert",),
}
"""Which files each runtime is judged on."""
_BATCHES = 2


class _Positional(nn.Module):
    """A Hugging Face model of one input, which returns its first output."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Run the model."""
        return self.model(**{self.name: value}, return_dict=False)[0]  # type: ignore[no-any-return]


def build(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a network with random weights, and example inputs."""
    from support import deploy_zoo  # noqa: PLC0415 - imports torchvision

    where, _, which = name.partition("/")
    if where == "own":
        return runtime_nets.build(which), runtime_nets.inputs(which, seed=0)
    if where == "hugging_face":
        model, kwargs = deploy_zoo.hugging_face(which)
        first = next(iter(kwargs))
        return _Positional(model, first).eval(), (kwargs[first],)
    made = deploy_zoo.torchvision_model(which) if where == "torchvision" else deploy_zoo.timm_model(which)
    return _First(made[0]).eval(), made[1]


class _First(nn.Module):
    """A model that answers with one tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Run the model."""
        answer: Any = self.model(value)
        answer = answer["out"] if isinstance(answer, dict) else answer
        found: torch.Tensor = answer[0] if isinstance(answer, tuple) else answer
        return found


def files(name: str, labels: Collection[str] = (*PEERS, *DIALECTS)) -> dict[str, Path]:
    """Return a network's quantized files by who made them, made on first use; one that failed is not among them."""
    folder = cache.folder("dialect", name.replace("/", "-"))
    wanted = {label: folder / f"{label}.onnx" for label in labels}
    missing = [label for label, path in wanted.items() if not path.exists() and not path.with_suffix(".no").exists()]
    if missing:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _make(name, folder, missing)
    for label in missing:
        if not wanted[label].exists():
            wanted[label].with_suffix(".no").touch()
    return {label: path for label, path in wanted.items() if path.exists()}


def _make(name: str, folder: Path, labels: Collection[str]) -> None:
    from embedl_deploy.dialect import relower  # noqa: PLC0415 - imports ONNX Runtime

    model, example = build(name)
    batches = list(_batches(name, example))
    plain = folder / "float.onnx"
    if not plain.exists():
        # The old exporter is ten times as fast, and the graphs it writes are what most files out there look like.
        torch.onnx.export(model, example, str(plain), opset_version=17, input_names=["x"], dynamo=False)
    source = folder / f"{SOURCE}.onnx"
    for label, (kind, per_channel) in PEERS.items():
        if label in labels or (label == SOURCE and not source.exists()):
            _by_ort(folder, label, [batch.numpy() for batch in batches], kind, per_channel=per_channel)
    for label in set(labels) & set(DIALECTS) if source.exists() else ():
        try:
            data = [batch.numpy() for batch in batches]
            relower(source, folder / f"{label}.onnx", dialect=DIALECTS[label], samples=data)
        except Exception as error:  # noqa: BLE001 - a file that cannot be lowered is reported as not made
            print(f"{name}, {label}: {type(error).__name__}: {error}"[:300], file=sys.stderr)


def _batches(name: str, example: tuple[torch.Tensor, ...]) -> Iterator[torch.Tensor]:
    where, _, which = name.partition("/")
    generator = torch.Generator().manual_seed(1)
    for seed in range(_BATCHES):
        if where == "own":
            yield runtime_nets.inputs(which, seed=seed)[0]
        elif example[0].is_floating_point():
            yield torch.randn(example[0].shape, generator=generator)
        else:
            yield torch.randint(0, int(example[0].max()) + 1, example[0].shape, generator=generator)


def _by_ort(folder: Path, label: str, data: list[np.ndarray], kind: str, *, per_channel: bool) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static  # noqa: PLC0415 - heavy
    from onnxruntime.quantization.shape_inference import quant_pre_process  # noqa: PLC0415

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Gives the batches one by one."""

        def __init__(self) -> None:
            self.rest = iter(data)

        def get_next(self) -> dict[str, np.ndarray] | None:
            batch = next(self.rest, None)
            return None if batch is None else {"x": batch}

    prepared = folder / "prepared.onnx"
    try:
        if not prepared.exists():
            quant_pre_process(str(folder / "float.onnx"), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared), str(folder / f"{label}.onnx"), Reader(), per_channel=per_channel,
            activation_type=QuantType[kind], weight_type=QuantType.QInt8,
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - whatever an opponent raises
        print(f"{folder.name}, {label}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
