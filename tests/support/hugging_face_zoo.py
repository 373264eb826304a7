"""Hugging Face's architectures, small and with random weights: a class, what its configuration changes, its inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

WORDS = 200
SMALL = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": WORDS,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 12}
IMAGE = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "image_size": 64,
    "patch_size": 16,
}  # fmt: skip
SPEECH = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 32,
    "conv_dim": (32, 32, 32), "conv_kernel": (10, 3, 3), "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
HALVES = {
    "d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": WORDS,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 2, "use_cache": False,
}  # fmt: skip

Inputs = Callable[[], dict[str, torch.Tensor]]


def words() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, WORDS, (1, 12)), "attention_mask": torch.ones(1, 12, dtype=torch.long)}


def ids() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, WORDS, (1, 12))}


def two_texts() -> dict[str, torch.Tensor]:
    return {**ids(), "decoder_input_ids": torch.randint(3, WORDS, (1, 8))}


def picture(size: int = 64) -> Inputs:
    return lambda: {"pixel_values": torch.randn(1, 3, size, size)}


def masked_picture(size: int = 64) -> Inputs:
    return lambda: {**picture(size)(), "pixel_mask": torch.ones(1, size, size, dtype=torch.long)}


def sound() -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(1, 1600)}


def spectrum() -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(1, 80, 64), "decoder_input_ids": torch.randint(3, WORDS, (1, 6))}


def pair() -> dict[str, torch.Tensor]:
    return {**words(), **picture()()}


@dataclass(frozen=True)
class Architecture:
    """One architecture."""

    model: str
    settings: dict[str, Any]
    inputs: Inputs

    def build(self) -> tuple[nn.Module, dict[str, torch.Tensor]]:
        import transformers

        torch.manual_seed(0)
        kind = getattr(transformers, self.model)
        config = kind.config_class(**self.settings)
        model: nn.Module = kind(config)
        return model, self.inputs()


def _text(model: str, **changes: Any) -> Architecture:
    return Architecture(model, {**SMALL, **changes}, words)


def _decoder(model: str, **changes: Any) -> Architecture:
    return Architecture(model, {**GROUPED, "use_cache": False, **changes}, ids)


def _vision(model: str, size: int = 64, **changes: Any) -> Architecture:
    return Architecture(model, {**IMAGE, **changes}, picture(size))


def _speech(model: str, **changes: Any) -> Architecture:
    return Architecture(model, {**SPEECH, **changes}, sound)


_BACKBONE = {
    "model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1],
    "layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"],
}  # fmt: skip
_DETR = {
    "use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False, "d_model": 32,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_queries": 10, "num_labels": 5,
}  # fmt: skip
_TOWERS = {
    "text_config": {**SMALL, "projection_dim": 32}, "vision_config": {**IMAGE, "projection_dim": 32},
}  # fmt: skip

ARCHITECTURES: dict[str, Architecture] = {
    "albert": _text("AlbertModel", embedding_size=24),
    "ast": Architecture("ASTForAudioClassification", {**IMAGE, "max_length": 64, "num_mel_bins": 32},
                        lambda: {"input_values": torch.randn(1, 64, 32)}),
    "bart": Architecture("BartModel", HALVES, two_texts),
    "beit": _vision("BeitForImageClassification"),
    "bloom": Architecture("BloomForCausalLM", {"vocab_size": WORDS, "hidden_size": 48, "n_layer": 2, "n_head": 4,
                                               "use_cache": False}, ids),
    "clip": Architecture("CLIPModel", {"projection_dim": 32, **_TOWERS}, pair),
    "conditional_detr": Architecture("ConditionalDetrForObjectDetection", {**_DETR, "backbone_config": _BACKBONE},
                                     masked_picture(64)),
    "convbert": _text("ConvBertModel", embedding_size=24),
    "convnextv2": Architecture("ConvNextV2ForImageClassification", {"hidden_sizes": [16, 24, 32, 48],
                                                                   "depths": [1, 1, 2, 1]}, picture()),
    "data2vec_audio": _speech("Data2VecAudioModel", conv_pos_kernel_size=5, num_conv_pos_embeddings=2),
    "deberta_v2": _text("DebertaV2Model", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "deit": _vision("DeiTForImageClassification"),
    "depth_anything": Architecture("DepthAnythingForDepthEstimation", {
        "backbone_config": {"model_type": "dinov2", "hidden_size": 48, "num_hidden_layers": 4, "image_size": 56,
                            "num_attention_heads": 4, "mlp_ratio": 2, "patch_size": 14,
                            "out_features": ["stage1", "stage2", "stage3", "stage4"],
                            "apply_layernorm": True, "reshape_hidden_states": False},
        "reassemble_hidden_size": 48, "neck_hidden_sizes": [16, 24, 32, 48], "fusion_hidden_size": 16,
        "head_hidden_size": 8, "patch_size": 14}, picture(56)),
    "detr": Architecture("DetrForObjectDetection", {**_DETR, "backbone_config": _BACKBONE}, masked_picture(64)),
    "distilbert": Architecture("DistilBertModel", {"dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 96,
                                                  "vocab_size": WORDS, "max_position_embeddings": 64}, words),
    "dpt": _vision("DPTForDepthEstimation", num_hidden_layers=4, backbone_out_indices=[0, 1, 2, 3],
                   neck_hidden_sizes=[16, 24, 32, 48], fusion_hidden_size=16, is_hybrid=False),
    "efficientnet": Architecture("EfficientNetForImageClassification", {"width_coefficient": 0.5, "hidden_dim": 640,
                                                                       "depth_coefficient": 0.5}, picture()),
    "electra": _text("ElectraModel", embedding_size=24),
    "falcon": Architecture("FalconForCausalLM", {**SMALL, "use_cache": False, "multi_query": True}, ids),
    "fnet": Architecture("FNetModel", {**SMALL, "use_tpu_fourier_optimizations": False}, ids),
    "focalnet": Architecture("FocalNetForImageClassification", {"image_size": 64, "embed_dim": 16,
                                                               "depths": [1, 1, 1, 1]}, picture()),
    "gemma": _decoder("GemmaForCausalLM"),
    "glpn": Architecture("GLPNForDepthEstimation", {"hidden_sizes": [16, 32, 40, 64], "depths": [1, 1, 1, 1],
                                                   "num_attention_heads": [1, 2, 4, 8], "decoder_hidden_size": 32},
                         picture()),
    "gpt2": Architecture("GPT2LMHeadModel", {"n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": WORDS,
                                            "n_positions": 64, "use_cache": False}, ids),
    "gpt_neo": Architecture("GPTNeoForCausalLM", {"hidden_size": 48, "num_layers": 2, "num_heads": 4,
                                                 "vocab_size": WORDS, "max_position_embeddings": 64,
                                                 "attention_types": [[["global", "local"], 1]], "window_size": 8,
                                                 "use_cache": False}, ids),
    "gpt_neox": _decoder("GPTNeoXForCausalLM"),
    "hiera": Architecture("HieraForImageClassification", {"image_size": [64, 64], "embed_dim": 16, "depths": [1, 1, 1],
                                                         "num_heads": [1, 2, 4], "num_query_pool": 2,
                                                         "masked_unit_size": [4, 4], "patch_stride": [4, 4]},
                          picture()),
    "hubert": _speech("HubertModel"),
    "layoutlm": Architecture("LayoutLMModel", SMALL,
                             lambda: {**words(), "bbox": torch.randint(0, 60, (1, 12, 4)).sort(-1).values}),
    "levit": Architecture("LevitForImageClassification", {"image_size": 64, "hidden_sizes": [32, 48, 64],
                                                         "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1],
                                                         "key_dim": [8, 8, 8]}, picture()),
    "llama": _decoder("LlamaForCausalLM"),
    "marian": Architecture("MarianModel", {**HALVES, "decoder_vocab_size": WORDS}, two_texts),
    "mistral": _decoder("MistralForCausalLM", sliding_window=8),
    "mobilebert": _text("MobileBertModel", embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32),
    "mobilenet_v1": Architecture("MobileNetV1ForImageClassification", {"depth_multiplier": 0.25}, picture()),
    "mobilenet_v2": Architecture("MobileNetV2ForImageClassification", {"depth_multiplier": 0.35}, picture()),
    "mobilevitv2": Architecture("MobileViTV2ForImageClassification", {"image_size": 64, "width_multiplier": 0.5},
                                picture()),
    "modernbert": _text("ModernBertModel", global_attn_every_n_layers=2, local_attention=8, cls_token_id=1,
                        sep_token_id=2),
    "mpnet": _text("MPNetModel"),
    "nystromformer": _text("NystromformerModel", num_landmarks=4, segment_means_seq_len=12),
    "opt": _decoder("OPTForCausalLM", ffn_dim=96, word_embed_proj_dim=48),
    "phi": _decoder("PhiForCausalLM", num_key_value_heads=4),
    "poolformer": Architecture("PoolFormerForImageClassification", {"hidden_sizes": [16, 24, 32, 48],
                                                                   "depths": [1, 1, 1, 1]}, picture()),
    "pvt_v2": Architecture("PvtV2ForImageClassification", {"image_size": 64, "hidden_sizes": [16, 32, 40, 64],
                                                          "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 4, 8]},
                           picture()),
    "qwen2": _decoder("Qwen2ForCausalLM"),
    "qwen3": _decoder("Qwen3ForCausalLM"),
    "regnet": Architecture("RegNetForImageClassification", {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48],
                                                           "depths": [1, 1, 1, 1], "groups_width": 8}, picture()),
    "roberta": _text("RobertaModel"),
    "sam": Architecture("SamVisionModel", {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                                           "mlp_dim": 96, "image_size": 64, "patch_size": 16, "output_channels": 32,
                                           "window_size": 2, "global_attn_indexes": [1]}, picture()),
    "sew": _speech("SEWModel", squeeze_factor=2),
    "siglip": _vision("SiglipVisionModel"),
    "squeezebert": _text("SqueezeBertModel", embedding_size=48),
    "swinv2": Architecture("Swinv2ForImageClassification", {"image_size": 64, "embed_dim": 24, "depths": [2, 2],
                                                           "num_heads": [2, 4], "window_size": 4}, picture()),
    "t5": Architecture("T5Model", {"d_model": 48, "d_kv": 12, "num_layers": 2, "num_heads": 4, "d_ff": 96,
                                   "vocab_size": WORDS, "use_cache": False}, two_texts),
    "t5_encoder": Architecture("T5EncoderModel", {"d_model": 48, "d_kv": 12, "num_layers": 2, "num_heads": 4,
                                                 "d_ff": 96, "vocab_size": WORDS}, words),
    "upernet": Architecture("UperNetForSemanticSegmentation", {
        "backbone_config": {**_BACKBONE, "out_features": ["stage1", "stage2", "stage3", "stage4"]},
        "hidden_size": 32, "auxiliary_in_channels": 32, "auxiliary_channels": 16, "num_labels": 5}, picture()),
    "videomae": Architecture("VideoMAEForVideoClassification", {**IMAGE, "num_frames": 4, "tubelet_size": 2},
                             lambda: {"pixel_values": torch.randn(1, 4, 3, 64, 64)}),
    "wav2vec2": _speech("Wav2Vec2ForCTC"),
    "wavlm": _speech("WavLMModel", num_buckets=32, max_bucket_distance=80),
    "whisper": Architecture("WhisperModel", {**HALVES, "num_mel_bins": 80, "max_source_positions": 32,
                                            "max_target_positions": 16}, spectrum),
    "xlm_roberta": _text("XLMRobertaModel"),
    "xlnet": Architecture("XLNetModel", {"vocab_size": WORDS, "d_model": 48, "n_layer": 2, "n_head": 4, "d_inner": 96,
                                        "use_mems_eval": False}, words),
    "yolos": _vision("YolosForObjectDetection", num_detection_tokens=8, image_size=[64, 64]),
}  # fmt: skip
