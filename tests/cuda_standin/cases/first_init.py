"""Who initialises CUDA first: `FIRST_INIT` names the way."""

import ctypes
import os
import threading

import pytest
import torch

WAY = os.environ["FIRST_INIT"]


def make_context():
    """Make a context as C++ does, without torch."""
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0) == 0


if WAY == "collection":
    torch.cuda.current_device()
elif WAY == "driver":
    make_context()
elif WAY == "available":
    assert torch.cuda.is_available()
    assert torch.cuda.device_count()


def load():
    torch.cuda.init()  # by a thread


@pytest.fixture(scope="session")
def model():
    return torch.zeros(8, device="cuda")


if WAY == "fixture":

    def test_fixture(model):
        assert model.is_cuda


def test_it():
    if WAY == "zeros":
        torch.zeros(8, device="cuda")
    elif WAY == "default":
        torch.set_default_device("cuda")
        torch.ones(2)
        torch.set_default_device(None)
    elif WAY == "thread":
        thread = threading.Thread(target=load, name="loader")
        thread.start()
        thread.join()
    elif WAY == "driver in a test":
        make_context()
    elif WAY == "fork":
        pid = os.fork()
        if not pid:
            torch.cuda.init()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
