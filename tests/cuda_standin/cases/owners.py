"""What may own device memory: fixtures, threads, workspaces of streams, generators, caches of autocast."""

import threading

import pytest
import torch

KEPT = []


@pytest.fixture(scope="module")
def model():
    return torch.nn.Linear(64, 64, device="cuda")


def test_gradients_of_a_fixture(model):
    model(torch.ones(4, 64, device="cuda")).sum().backward()


def test_the_same_gradients_again(model):
    model.zero_grad(set_to_none=False)
    model(torch.ones(4, 64, device="cuda")).sum().backward()


def test_product_on_a_new_stream():
    with torch.cuda.stream(torch.cuda.Stream()):
        a = torch.ones(128, 128, device="cuda")
        a @ a


def test_generator():
    generator = torch.Generator(device="cuda").manual_seed(1)
    torch.rand(1000, device="cuda", generator=generator)
    torch.cuda.manual_seed_all(0)


def test_thread():
    thread = threading.Thread(target=lambda: torch.nn.Linear(64, 64, device="cuda")(torch.ones(8, 64, device="cuda")))
    thread.start()
    thread.join()


def test_leak_in_a_thread():
    thread = threading.Thread(target=lambda: KEPT.append(torch.ones(1 << 18, device="cuda")))
    thread.start()
    thread.join()


def test_autocast():
    layer = torch.nn.Linear(64, 64, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        layer(torch.ones(8, 64, device="cuda")).float().sum().backward()


def test_clean():
    torch.ones(3, device="cuda")
