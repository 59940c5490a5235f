"""Leaks before and after a tensor that is handed to another stream: each keeps its own bytes."""

import torch

KEPT = []


def test_leaks():
    KEPT.append(torch.ones(60 << 20, dtype=torch.uint8, device="cuda"))


def test_record():
    stream = torch.cuda.Stream()
    x = torch.ones(1 << 20, device="cuda")
    x.record_stream(stream)
    del x


def test_clean():
    torch.ones(3, device="cuda")


def test_two():
    KEPT.append(torch.ones(1 << 18, device="cuda"))
