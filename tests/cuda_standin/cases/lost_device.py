"""A device that fails in the middle of a session, as after a kernel that used a wrong address; later tests are unchecked."""

import contextlib
import ctypes
import os

import torch

KEPT = []
ON_THE_CPU = []


def lose_the_device():
    """Make every later call of this process fail, on the stand-in runtime or on a real device."""
    if os.environ.get("CUDA_STANDIN") == "1":
        ctypes.CDLL("libcuda.so.1").standin_lose_devices()
    torch.zeros(4, device="cuda")[torch.tensor([1 << 20], device="cuda")]
    torch.cuda.synchronize()


def test_leak_before():
    KEPT.append(torch.ones(1 << 20, device="cuda"))


def test_loses_the_device():
    lose_the_device()


def test_uses_it():
    torch.ones(3, device="cuda")


def test_leak_on_the_cpu():
    ON_THE_CPU.append(torch.ones(1 << 20))


def test_catches_the_error():
    with contextlib.suppress(RuntimeError):
        torch.ones(1 << 24, device="cuda")


def test_on_the_cpu():
    torch.ones(1000).sum()
