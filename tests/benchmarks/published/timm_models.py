"""Models of timm by their names, with images of the published sizes."""

from __future__ import annotations

import timm
import torch
from entries import Architecture, Built, classified


def _named(name: str, size: int = 224, family: str = "convolution", **options: object) -> Architecture:
    def build() -> Built:
        return timm.create_model(name, pretrained=False, **options), {"x": torch.zeros(2, 3, size, size)}

    return Architecture(family, name, build, classified(2))


VIT, MIXER = "vision transformer", "mixer"

timm_vit = _named("vit_base_patch16_224", family=VIT, depth=2)
timm_deit3 = _named("deit3_base_patch16_224", family=VIT, depth=2)
timm_beit = _named("beit_base_patch16_224", family=VIT, depth=2)
timm_eva02 = _named("eva02_base_patch14_448", 448, family=VIT, depth=2)
timm_cait = _named("cait_xxs24_224", family=VIT, depth=2)
timm_xcit = _named("xcit_nano_12_p16_224", family=VIT, depth=2)
timm_pit = _named("pit_s_224", family=VIT)
timm_tnt = _named("tnt_s_patch16_224", family=VIT, depth=2)
timm_twins = _named("twins_svt_small", family=VIT)
timm_crossvit = _named("crossvit_9_240", 240, family=VIT)
timm_coat = _named("coat_tiny", family=VIT)
timm_coatnet = _named("coatnet_0_rw_224", family=VIT)
timm_davit = _named("davit_tiny", family=VIT)
timm_edgenext = _named("edgenext_small", 256, family=VIT)
timm_tiny_vit = _named("tiny_vit_5m_224", family=VIT)
timm_efficientvit = _named("efficientvit_b0", family=VIT)
timm_volo = _named("volo_d1_224", family=VIT)
timm_mixer = _named("mixer_b16_224", family=MIXER)
timm_gmlp = _named("gmlp_s16_224", family=MIXER)
timm_resmlp = _named("resmlp_12_224", family=MIXER)
timm_convmixer = _named("convmixer_768_32", family=MIXER)
timm_sequencer = _named("sequencer2d_s", family=MIXER, layers=[1, 1, 1, 1])
timm_resnetv2 = _named("resnetv2_50")
timm_seresnet = _named("seresnet50")
timm_res2net = _named("res2net50_26w_4s")
timm_nfnet = _named("dm_nfnet_f0", 192)
timm_ghostnet = _named("ghostnet_100")
timm_mobilenetv4 = _named("mobilenetv4_conv_small")
timm_repvgg = _named("repvgg_a0")
timm_repvit = _named("repvit_m0_9")
timm_hrnet = _named("hrnet_w18_small")
timm_dpn = _named("dpn68")
timm_dla = _named("dla34")
timm_vovnet = _named("ese_vovnet19b_dw")
timm_cspdarknet = _named("cspdarknet53", 256)
timm_fastvit = _named("fastvit_t8", 256)
timm_mambaout = _named("mambaout_tiny")
timm_inception_next = _named("inception_next_tiny")
timm_starnet = _named("starnet_s1")
timm_efficientnetv2 = _named("efficientnetv2_rw_t", 224)
