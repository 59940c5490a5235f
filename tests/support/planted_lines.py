"""Leaks whose line to edit is not the only one, or is written with another name; `  # edit` marks it, as in `planted`."""

from __future__ import annotations

from typing import Final

PLANTED_LINES: Final = {
    "item_by_another_name": """
import torch

ROUNDS = {}

def note(run, step):
    steps = ROUNDS.setdefault(run, [])
    steps.append({"number": len(steps), "state": step})  # edit

def forget(steps):
    steps.append(None)

def test_rounds():
    note("round-7", torch.ones(31, 31))
""",
    "exception_kept_on_object": """
import torch

class Solver:
    failure = None

    def solve(self, matrix):
        scratch = matrix * 2
        raise ValueError("singular")

    def run(self, matrix):
        try:
            self.solve(matrix)
        except ValueError as error:
            self.failure = error  # edit

SOLVER = Solver()

def test_solver():
    SOLVER.run(torch.ones(600, 600))
""",
    "several_lines_add": """
import torch

BATCHES = []

def warm_up():
    BATCHES.append(None)

def load(size):
    BATCHES.append(torch.ones(size, 3))  # edit

def test_load():
    load(300)
""",
}
