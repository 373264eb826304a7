"""Other people's networks with random weights: torchvision's, timm's and Hugging Face's."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from support.hugging_face_zoo import ARCHITECTURES
from support.vision import declare_operators

declare_operators()

SEGMENTATION = (
    "fcn_resnet50", "fcn_resnet101", "deeplabv3_resnet50", "deeplabv3_resnet101", "deeplabv3_mobilenet_v3_large",
    "lraspp_mobilenet_v3_large",
)  # fmt: skip
HUGGING_FACE = ("vit", "dinov2", "swin", "convnext", "segformer", "mobilevit", "bert", "rt_detr", "resnet")
VIDEO = ("mc3_18", "r2plus1d_18", "r3d_18", "s3d", "swin3d_t")
FLOW = ("raft_large", "raft_small")
DETECTION = (
    "fasterrcnn_mobilenet_v3_large_320_fpn", "fasterrcnn_resnet50_fpn", "fcos_resnet50_fpn",
    "keypointrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn", "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
)  # fmt: skip
# One of each kind, its smallest.
TIMM = (
    "beit_base_patch16_224", "botnet26t_256", "caformer_s18", "cait_xxs24_224", "coat_lite_tiny", "coatnet_nano_rw_224",
    "convit_tiny", "convmixer_768_32", "convnext_atto", "convnextv2_atto", "crossvit_tiny_240", "cs3darknet_s",
    "cspresnet50", "davit_tiny", "deit_tiny_patch16_224", "densenet121", "dla46_c", "dm_nfnet_f0", "dpn48b",
    "edgenext_xx_small", "efficientformer_l1", "efficientformerv2_s0", "efficientnet_b0", "efficientvit_b0",
    "efficientvit_m0", "ese_vovnet19b_dw", "eva02_tiny_patch14_224", "fasternet_t0", "fastvit_t8", "focalnet_tiny_srf",
    "gcvit_xxtiny", "ghostnetv2_100", "gmlp_ti16_224", "hardcorenas_a", "hgnetv2_b0", "hiera_tiny_224",
    "hrnet_w18_small", "inception_next_atto", "inception_v4", "lcnet_050", "legacy_seresnet18", "levit_128s",
    "mambaout_femto", "maxvit_rmlp_pico_rw_256", "mixer_s32_224", "mixnet_s", "mobilenetv2_100",
    "mobilenetv3_small_100", "mobilenetv4_conv_small", "mobileone_s0", "mobilevit_xxs", "mobilevitv2_050",
    "mvitv2_tiny", "nest_tiny", "nextvit_small", "nf_resnet50", "pit_ti_224", "poolformer_s12", "pvt_v2_b0",
    "rdnet_tiny", "regnety_002", "repghostnet_050", "repvgg_a0", "repvit_m0_9", "res2net50_14w_8s", "resmlp_12_224",
    "resnest14d", "resnet18", "resnetv2_50", "rexnet_100", "selecsls42b", "sequencer2d_s", "shvit_s1", "skresnet18",
    "starnet_s050", "swiftformer_xs", "swin_tiny_patch4_window7_224", "swinv2_cr_tiny_224", "swinv2_tiny_window8_256",
    "tiny_vit_5m_224", "tnt_s_patch16_224", "tresnet_m", "twins_svt_small", "vgg11_bn", "visformer_tiny",
    "vit_relpos_small_patch16_224", "vit_tiny_patch16_224", "vitamin_small_224", "volo_d1_224", "xception41",
    "xcit_nano_12_p16_224",
)  # fmt: skip
_TIMM_SIZES = {"efficientformer_l1": 224, "inception_v4": 96}
_SIZES = {"inception_v3": 75}
_TRAINED_AT = {"inception_v3": 299, "googlenet": 128}  # their auxiliary heads need larger maps
_FIXED_SIZE = ("vit_", "maxvit", "swin_v2")


def classification_names() -> list[str]:
    """List torchvision's classification models."""
    import torchvision.models as zoo

    return sorted(zoo.list_models(module=zoo))


def torchvision_model(name: str, size: int | None = None) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Build a model with random weights and real batch norm statistics, and an example input."""
    import torchvision.models as zoo

    torch.manual_seed(0)
    settings: dict[str, Any] = {"weights": None}
    if name in ("googlenet", "inception_v3"):
        settings["init_weights"] = False
    if name in SEGMENTATION:
        settings["weights_backbone"] = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = zoo.get_model(name, **settings)
    if size is None:
        size = 224 if any(part in name for part in _FIXED_SIZE) else _SIZES.get(name, 64)
    stir(model)
    settle(model, torch.randn(2, 3, *[_TRAINED_AT.get(name, size)] * 2))
    return model.eval(), (torch.randn(1, 3, size, size),)


def video_model(name: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Build one of torchvision's models of clips with random weights, and an example clip."""
    import torchvision.models as zoo

    torch.manual_seed(0)
    model: nn.Module = zoo.get_model(name, weights=None)
    shape = (3, 16, 64, 64) if name == "s3d" else (3, 4, 48, 48)
    stir(model)
    settle(model, torch.randn(2, *shape))
    return model.eval(), (torch.randn(1, *shape),)


def flow_model(name: str) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Build one of torchvision's models of motion with random weights, and two example pictures."""
    import torchvision.models as zoo

    torch.manual_seed(0)
    model: nn.Module = zoo.get_model(name, weights=None)
    return model.eval(), (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128))


def detection_model(name: str) -> tuple[nn.Module, tuple[list[torch.Tensor]]]:
    """Build one of torchvision's detectors with random weights, and a list of one example picture."""
    import torchvision.models as zoo

    torch.manual_seed(0)
    model: nn.Module = zoo.get_model(name, weights=None, weights_backbone=None)
    return model.eval(), ([torch.rand(3, 128, 128)],)


def timm_model(name: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Build one of timm's models with random weights, and an example input, small where the model allows it."""
    import timm

    torch.manual_seed(0)
    size = _TIMM_SIZES.get(name, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model: nn.Module = timm.create_model(name, pretrained=False, num_classes=10, img_size=size)
        except TypeError:
            model = timm.create_model(name, pretrained=False, num_classes=10)
    stir(model)
    settle(model, torch.randn(2, 3, size, size))
    return model.eval(), (torch.randn(1, 3, size, size),)


def stir(model: nn.Module) -> None:
    """Give parameters that start at zero or next to it real values.

    A classifier of zeros or a layer scale of 1e-6 makes outputs equal whatever happens before it.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.abs().max() < 1e-3:
                parameter.normal_(0, 0.05 if parameter.dim() > 1 else 0.2)


def settle(model: nn.Module, batch: torch.Tensor) -> None:
    """Make batch norm statistics real by running three batches, when there are any."""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        model.train()
        with torch.no_grad():
            for scale in (1.0, 1.5, 0.5):
                model(batch * scale)


def hugging_face_names() -> list[str]:
    """List the architectures that `hugging_face` builds."""
    return sorted({*_BUILDERS, *ARCHITECTURES})


def hugging_face(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """Build a small model with random weights, and example keyword inputs."""
    import transformers

    torch.manual_seed(0)
    if name in ARCHITECTURES:
        model, kwargs = ARCHITECTURES[name].build()
    else:
        build, kwargs = _BUILDERS[name](transformers)
        model = build()
    stir(model)
    return model.eval(), kwargs


def _pixels(size: int = 64) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(1, 3, size, size)}


def _vit(t: Any) -> Any:
    config = t.ViTConfig(
        hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, image_size=64, patch_size=16
    )
    return lambda: t.ViTForImageClassification(config), _pixels()


def _dinov2(t: Any) -> Any:
    config = t.Dinov2Config(
        hidden_size=48, num_hidden_layers=3, num_attention_heads=4, mlp_ratio=2, image_size=64, patch_size=16
    )
    return lambda: t.Dinov2Model(config), _pixels()


def _swin(t: Any) -> Any:
    config = t.SwinConfig(image_size=64, patch_size=4, embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=4)
    return lambda: t.SwinForImageClassification(config), _pixels()


def _convnext(t: Any) -> Any:
    return lambda: t.ConvNextForImageClassification(
        t.ConvNextConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1])
    ), _pixels()


def _segformer(t: Any) -> Any:
    config = t.SegformerConfig(
        hidden_sizes=[16, 32, 40, 64], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 4, 8], decoder_hidden_size=32
    )
    return lambda: t.SegformerForSemanticSegmentation(config), _pixels()


def _mobilevit(t: Any) -> Any:
    config = t.MobileViTConfig(image_size=64, hidden_sizes=[32, 40, 48], neck_hidden_sizes=[8, 16, 24, 32, 40, 48, 64])
    return lambda: t.MobileViTForImageClassification(config), _pixels()


def _bert(t: Any) -> Any:
    config = t.BertConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, vocab_size=200
    )
    inputs = {"input_ids": torch.randint(0, 200, (1, 12)), "attention_mask": torch.ones(1, 12, dtype=torch.long)}
    return lambda: t.BertModel(config), inputs


def _rt_detr(t: Any) -> Any:
    backbone = t.RTDetrResNetConfig(
        embedding_size=16, hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = t.RTDetrConfig(
        backbone_config=backbone, use_timm_backbone=False, backbone=None, d_model=32, encoder_hidden_dim=32,
        encoder_in_channels=[24, 32, 48], decoder_in_channels=[32, 32, 32], encoder_ffn_dim=48, decoder_ffn_dim=48,
        num_queries=20, decoder_layers=2, decoder_attention_heads=4, encoder_attention_heads=4, num_labels=5,
        feat_strides=[8, 16, 32], anchor_image_size=None,
    )  # fmt: skip
    return lambda: t.RTDetrForObjectDetection(config), _pixels(128)


def _resnet(t: Any) -> Any:
    config = t.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], layer_type="basic")
    return lambda: t.ResNetForImageClassification(config), _pixels()


_BUILDERS: dict[str, Callable[[Any], Any]] = {
    "vit": _vit, "dinov2": _dinov2, "swin": _swin, "convnext": _convnext, "segformer": _segformer,
    "mobilevit": _mobilevit, "bert": _bert, "rt_detr": _rt_detr, "resnet": _resnet,
}  # fmt: skip


class Yolo(nn.Module):
    """A small YOLO-like net: SiLU, cross-stage concat, pyramid pooling, upsampling, two scales."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down1, self.down2 = self.block(3, 8, 6, 2), self.block(8, 16, 3, 2), self.block(16, 32, 3, 2)
        self.left, self.right, self.join = self.block(16, 8, 1), self.block(16, 8, 1), self.block(16, 16, 1)
        self.pools = nn.ModuleList(nn.MaxPool2d(size, 1, size // 2) for size in (5, 9, 13))
        self.squeeze, self.wide = self.block(128, 16, 1), self.block(32, 16, 5)
        self.up = nn.Upsample(scale_factor=2)
        self.heads = nn.ModuleList([nn.Conv2d(16, 6, 1), nn.Conv2d(16, 6, 1)])

    @staticmethod
    def block(into: int, out: int, kernel: int, stride: int = 1) -> nn.Sequential:
        """Convolution, batch norm, SiLU."""
        pad = (kernel - 1) // 2
        return nn.Sequential(nn.Conv2d(into, out, kernel, stride, pad, bias=False), nn.BatchNorm2d(out), nn.SiLU())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.down1(self.stem(x))
        x = self.join(torch.cat([self.left(x), self.right(x)], 1))
        low = self.down2(x)
        low = self.squeeze(torch.cat([low, *(pool(low) for pool in self.pools)], 1))
        high = self.wide(torch.cat([x, self.up(low)], 1))
        return self.heads[0](high), self.heads[1](low)


def yolo() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Build the YOLO-like net with real batch norm statistics, and an example input."""
    torch.manual_seed(0)
    model = Yolo()
    settle(model, torch.randn(2, 3, 64, 64))
    return model.eval(), (torch.randn(1, 3, 64, 64),)
