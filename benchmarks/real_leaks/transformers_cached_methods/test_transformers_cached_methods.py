"""A cache on a method of RT-DETR has the model among its keys, and so keeps every model it was called for.

https://github.com/huggingface/transformers/issues/45412
"""

import torch
from transformers import RTDetrResNetConfig, RTDetrV2Config, RTDetrV2ForObjectDetection


def small_detector():
    backbone = RTDetrResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 16, 32, 32],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = RTDetrV2Config(
        backbone_config=backbone,
        encoder_in_channels=[16, 32, 32],
        encoder_hidden_dim=32,
        encoder_ffn_dim=32,
        encoder_attention_heads=2,
        d_model=32,
        decoder_in_channels=[32, 32, 32],
        decoder_ffn_dim=32,
        decoder_layers=2,
        decoder_attention_heads=2,
        decoder_n_points=2,
        num_queries=10,
        num_denoising=0,
        num_labels=4,
    )
    return RTDetrV2ForObjectDetection(config).eval()


def test_detector_proposes_as_many_boxes_as_it_has_queries():
    detector = small_detector()
    with torch.no_grad():
        found = detector(pixel_values=torch.zeros(1, 3, 64, 64))
    assert found.pred_boxes.shape == (1, 10, 4)
