"""A cycle in the first test that uses CUDA, while torch still imports what the first use needs."""

import torch


class Node:
    pass


def test_cycle():
    node = Node()
    node.me = node
    node.data = torch.ones(1024, 1024, device="cuda:0")
