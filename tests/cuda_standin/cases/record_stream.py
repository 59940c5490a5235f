"""A tensor that is handed to another stream and deleted: torch's counters disagree until the next allocation."""

import torch

KEPT = torch.ones(60 << 20, dtype=torch.uint8, device="cuda")


def test_warm():
    torch.ones(3, device="cuda")


def test_record():
    stream = torch.cuda.Stream()
    x = torch.ones(1 << 20, device="cuda")
    x.record_stream(stream)
    del x


def test_clean():
    torch.ones(3, device="cuda")
