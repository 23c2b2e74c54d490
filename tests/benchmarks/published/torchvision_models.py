"""Models of torchvision by their names, with images of the published sizes."""

from __future__ import annotations

import torch
import torchvision
from entries import Architecture, Built, classified


def _named(name: str, size: int = 224, batch: int = 2, family: str = "convolution", **options: object) -> Architecture:
    def build() -> Built:
        return torchvision.models.get_model(name, weights=None, **options), {"x": torch.zeros(batch, 3, size, size)}

    return Architecture(family, name, build, classified(batch))


def _segmented(name: str, key: str = "x") -> Architecture:
    def build() -> Built:
        module = torchvision.models.get_model(name, weights=None, weights_backbone=None)
        return module, {key: torch.zeros(2, 3, 256, 256)}

    return Architecture("segmentation", name, build, classified(2, 256, 256))


def _video(name: str, size: int = 112) -> Architecture:
    def build() -> Built:
        return torchvision.models.get_model(name, weights=None), {"x": torch.zeros(1, 3, 16, size, size)}

    return Architecture("video", name, build, classified(1))


alexnet = _named("alexnet")
vgg16 = _named("vgg16")
resnet50 = _named("resnet50")
resnext50 = _named("resnext50_32x4d")
wide_resnet50 = _named("wide_resnet50_2")
densenet121 = _named("densenet121")
googlenet = _named("googlenet", init_weights=False)
inception_v3 = _named("inception_v3", 299, init_weights=False)
squeezenet = _named("squeezenet1_1")
mobilenet_v2 = _named("mobilenet_v2")
mobilenet_v3 = _named("mobilenet_v3_large")
shufflenet_v2 = _named("shufflenet_v2_x1_0")
mnasnet = _named("mnasnet1_0")
efficientnet_b0 = _named("efficientnet_b0")
efficientnet_v2 = _named("efficientnet_v2_s", 384)
regnet_y = _named("regnet_y_400mf")
convnext_tiny = _named("convnext_tiny")
vit_b_16 = _named("vit_b_16", family="vision transformer")
swin_t = _named("swin_t", family="vision transformer")
swin_v2_t = _named("swin_v2_t", 256, family="vision transformer")
maxvit_t = _named("maxvit_t", family="vision transformer")
fcn_resnet50 = _segmented("fcn_resnet50")
deeplabv3 = _segmented("deeplabv3_resnet50")
lraspp = _segmented("lraspp_mobilenet_v3_large", "input")
r3d_18 = _video("r3d_18")
s3d = _video("s3d", 224)
mvit_v2_s = _video("mvit_v2_s", 224)
