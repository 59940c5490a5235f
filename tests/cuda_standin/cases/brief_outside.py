"""Memory that the driver gives, once as for a kernel's module, and in each run."""

import ctypes

import torch

USED = set()


def allocate(mebibytes):
    pointer = ctypes.c_uint64()
    assert ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mebibytes << 20)) == 0
    return pointer.value


class Old:
    """Frees its memory when a full collection finds it."""

    def __init__(self):
        self.pointer = allocate(64)
        self.me = self

    def __del__(self):
        ctypes.CDLL("libcuda.so.1").cuMemFree_v2(ctypes.c_uint64(self.pointer))


def test_warm():
    torch.ones(1, device="cuda")


def test_first_use():
    torch.ones(1, device="cuda")
    if not USED:
        USED.add(allocate(64))


def test_each_time():
    torch.ones(1, device="cuda")
    allocate(64)


def test_old_garbage():
    import gc

    torch.ones(1, device="cuda")
    Old()
    gc.collect(1)
