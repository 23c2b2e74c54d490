"""Vision models of Hugging Face transformers."""

from __future__ import annotations

from entries import labelled, matched, regressed
from hf_common import seen

IMAGE = (2, 3, 224, 224)
TWO = {"num_hidden_layers": 2}
CLASS = labelled(2)

vit = seen("vision transformer", "ViTForImageClassification", "ViTConfig", *IMAGE, loss=CLASS, **TWO)
deit = seen("vision transformer", "DeiTForImageClassification", "DeiTConfig", *IMAGE, loss=CLASS, **TWO)
beit = seen("vision transformer", "BeitForImageClassification", "BeitConfig", *IMAGE, loss=CLASS, **TWO)
dinov2 = seen(
    "vision transformer", "Dinov2ForImageClassification", "Dinov2Config", *IMAGE, loss=CLASS, image_size=224, **TWO
)
dinov3 = seen("vision transformer", "DINOv3ViTModel", "DINOv3ViTConfig", *IMAGE, loss=regressed(1), **TWO)
swin = seen(
    "vision transformer",
    "SwinForImageClassification",
    "SwinConfig",
    *IMAGE,
    loss=CLASS,
    depths=[2, 2],
    num_heads=[3, 6],
)
swinv2 = seen(
    "vision transformer",
    "Swinv2ForImageClassification",
    "Swinv2Config",
    2,
    3,
    256,
    256,
    loss=CLASS,
    image_size=256,
    window_size=8,
    depths=[2, 2],
    num_heads=[3, 6],
)
hiera = seen(
    "vision transformer", "HieraForImageClassification", "HieraConfig", *IMAGE, loss=CLASS, depths=[1, 1, 1, 1]
)
vit_mae = seen("vision transformer", "ViTMAEForPreTraining", "ViTMAEConfig", *IMAGE, decoder_num_hidden_layers=2, **TWO)
vitdet = seen("vision transformer", "VitDetModel", "VitDetConfig", *IMAGE, **TWO)
pvt = seen("vision transformer", "PvtForImageClassification", "PvtConfig", *IMAGE, loss=CLASS, depths=[1, 1, 1, 1])
pvt_v2 = seen(
    "vision transformer", "PvtV2ForImageClassification", "PvtV2Config", *IMAGE, loss=CLASS, depths=[1, 1, 1, 1]
)
segformer = seen(
    "segmentation",
    "SegformerForSemanticSegmentation",
    "SegformerConfig",
    2,
    3,
    256,
    256,
    loss=labelled(2, 256, 256),
    depths=[1, 1, 1, 1],
)
dpt = seen(
    "depth",
    "DPTForDepthEstimation",
    "DPTConfig",
    2,
    3,
    384,
    384,
    num_hidden_layers=4,
    backbone_out_indices=[0, 1, 2, 3],
)
depth_anything = seen(
    "depth",
    "DepthAnythingForDepthEstimation",
    "DepthAnythingConfig",
    2,
    3,
    224,
    224,
    backbone_config={
        "model_type": "dinov2",
        "num_hidden_layers": 4,
        "image_size": 224,
        "hidden_size": 384,
        "num_attention_heads": 6,
        "out_indices": [1, 2, 3, 4],
        "reshape_hidden_states": False,
        "apply_layernorm": True,
    },
)
glpn = seen("depth", "GLPNForDepthEstimation", "GLPNConfig", 2, 3, 256, 256, depths=[1, 1, 1, 1])
yolos = seen("detection", "YolosForObjectDetection", "YolosConfig", 2, 3, 512, 864, loss=matched(2, 100), **TWO)
detr = seen(
    "detection",
    "DetrForObjectDetection",
    "DetrConfig",
    2,
    3,
    256,
    256,
    use_timm_backbone=False,
    use_pretrained_backbone=False,
    backbone=None,
    backbone_config={"model_type": "resnet", "depths": [1, 1, 1, 1], "out_features": ["stage4"]},
    encoder_layers=2,
    decoder_layers=2,
    loss=matched(2, 100),
)
rt_detr = seen(
    "detection", "RTDetrForObjectDetection", "RTDetrConfig", 2, 3, 256, 256, loss=matched(2, 300), decoder_layers=2
)
sam_encoder = seen(
    "segmentation", "SamVisionModel", "SamVisionConfig", 1, 3, 1024, 1024, num_hidden_layers=2, global_attn_indexes=[1]
)
convnext = seen(
    "convolution", "ConvNextForImageClassification", "ConvNextConfig", *IMAGE, loss=CLASS, depths=[1, 1, 1, 1]
)
convnextv2 = seen(
    "convolution", "ConvNextV2ForImageClassification", "ConvNextV2Config", *IMAGE, loss=CLASS, depths=[1, 1, 1, 1]
)
resnet = seen("convolution", "ResNetForImageClassification", "ResNetConfig", *IMAGE, loss=CLASS, depths=[1, 1, 1, 1])
regnet = seen("convolution", "RegNetForImageClassification", "RegNetConfig", *IMAGE, loss=CLASS, depths=[1, 1, 1, 1])
mobilevit = seen("convolution", "MobileViTForImageClassification", "MobileViTConfig", 2, 3, 256, 256, loss=CLASS)
efficientnet = seen(
    "convolution",
    "EfficientNetForImageClassification",
    "EfficientNetConfig",
    *IMAGE,
    loss=CLASS,
    width_coefficient=1.0,
    depth_coefficient=1.0,
    hidden_dim=1280,
    image_size=224,
)
poolformer = seen(
    "convolution", "PoolFormerForImageClassification", "PoolFormerConfig", *IMAGE, loss=CLASS, depths=[1, 1, 1, 1]
)
levit = seen("convolution", "LevitForImageClassification", "LevitConfig", *IMAGE, loss=CLASS, depths=[1, 1, 1])
focalnet = seen(
    "convolution",
    "FocalNetForImageClassification",
    "FocalNetConfig",
    *IMAGE,
    loss=CLASS,
    depths=[1, 1],
    embed_dim=96,
    hidden_sizes=[192, 384],
    focal_levels=[2, 2],
    focal_windows=[3, 3],
)
swiftformer = seen(
    "convolution", "SwiftFormerForImageClassification", "SwiftFormerConfig", *IMAGE, loss=CLASS, depths=[1, 1, 1, 1]
)
videomae = seen(
    "video", "VideoMAEForVideoClassification", "VideoMAEConfig", 1, 16, 3, 224, 224, loss=labelled(1), **TWO
)
timesformer = seen(
    "video", "TimesformerForVideoClassification", "TimesformerConfig", 1, 8, 3, 224, 224, loss=labelled(1), **TWO
)
vivit = seen("video", "VivitForVideoClassification", "VivitConfig", 1, 32, 3, 224, 224, loss=labelled(1), **TWO)
