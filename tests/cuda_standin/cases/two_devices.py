"""Two devices, of which one is leaked on."""

import torch

KEPT = []


def test_first_device():
    torch.ones(1 << 20, device="cuda:0")


def test_leak_on_the_second():
    KEPT.append(torch.ones(5 << 20, dtype=torch.uint8, device="cuda:1"))


def test_copy_between_devices():
    x = torch.ones(1 << 20, device="cuda:0")
    assert x.to("cuda:1").to("cuda:0").shape == x.shape


def test_second_device_is_current():
    with torch.cuda.device(1):
        torch.nn.Linear(64, 64, device="cuda")(torch.ones(8, 64, device="cuda")).sum().backward()


def test_leak_on_both():
    x = torch.ones(2 << 20, dtype=torch.uint8, device="cuda:0")
    KEPT.append((x, x.to("cuda:1")))


def test_clean():
    torch.ones(3, device="cuda:1")
