"""Run by hand: ``pytest --gpu-leak benchmarks/real_leaks/shapes``. All but `test_the_engine_starts` leak."""

from __future__ import annotations

import engine
import torch


def test_a_cache_on_a_method() -> None:
    assert engine.Executor().layout(3) == 6


def test_a_dict_by_modules() -> None:
    engine.compile_for(torch.nn.Linear(256, 1024))


def test_the_engine_starts() -> None:
    assert engine.start().weights.shape == (256, 1024)


def test_a_cache_on_a_frozen_heap() -> None:
    assert engine.Executor().layout(3) == 6
