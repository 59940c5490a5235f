"""Arrays that use the memory of another: the memory lives on when they are gone, and that is no growth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.torch

# As captum's LRP does: each run replaces what the last one kept, of which one is an alias of the test's own input.
REPLACED = """
    import pytest, torch

    INPUT = torch.ones(4, 3)

    class Layer:
        pass

    LAYER = Layer()

    @pytest.mark.parametrize("number", range(3))
    def test_it(number):
        LAYER.activations = {torch.device("cpu"): (INPUT.data, torch.ones(4, 3))}
"""


def test_an_alias_that_each_run_replaces_does_not_grow(run: Runner) -> None:
    found = run(REPLACED)
    for number in range(3):
        name = f"test_it[{number}]"
        assert (found.verdicts[name], found.finding(name)["kind"]) == ("noted", "retained")


def test_a_result_that_a_graph_keeps_is_not_gone_with_its_tensor(run: Runner) -> None:
    """As a hidden state that no code detaches: torch keeps a saved result by its memory, not by the tensor."""
    found = run(
        """
        import torch

        WEIGHT = torch.zeros(64, requires_grad=True)
        STATE, NODES = {}, []

        def test_leaks_its_hidden_states():
            STATE["hidden"] = torch.tanh(STATE.get("hidden", WEIGHT) + 1)

        def test_leaks_nodes_beside_a_slot():
            STATE["result"] = torch.exp(WEIGHT)
            NODES.append(STATE["result"].grad_fn)

        def test_detaches():
            STATE["detached"] = torch.tanh(STATE.get("detached", WEIGHT).detach() + WEIGHT)

        def test_replaces():
            STATE["last"] = torch.exp(WEIGHT)

        def test_lets_an_alias_go():
            STATE["alias"] = [WEIGHT.detach()[:2], *STATE.pop("alias", [])][:1]
        """
    )
    assert found.verdicts == {
        "test_leaks_its_hidden_states": "leaked",
        "test_leaks_nodes_beside_a_slot": "leaked",
        "test_detaches": "noted",
        "test_replaces": "noted",
        "test_lets_an_alias_go": "noted",
    }
    growing = [one for one in found.tests["test_leaks_its_hidden_states"]["findings"] if one["failed"]]
    assert [(one["kind"], one["bytes_per_run"], one["code"]) for one in growing] == [("growing", 256, "GL201")]


def test_aliases_of_what_the_first_run_has_made_grow_where_they_pile_up_alone(run: Runner) -> None:
    """As the state of a model that is made once, which is kept as the best so far."""
    found = run(
        """
        import torch

        MADE, KEPT = {}, []

        def model(name):
            if name not in MADE:
                MADE[name] = torch.nn.Linear(8, 8)
            return MADE[name]

        def test_replaces():
            MADE["state"] = model("one").state_dict()

        def test_replaces_two():
            MADE["first"], MADE["second"] = model("two").weight.data, model("two").weight[:2].detach()

        def test_leaks():
            KEPT.append(model("three").state_dict())

        def test_leaks_beside_what_it_replaces():
            MADE["last"] = model("four").weight.data
            KEPT.append(model("four").weight.data)
        """
    )
    assert found.verdicts == {
        "test_replaces": "noted",
        "test_replaces_two": "noted",
        "test_leaks": "leaked",
        "test_leaks_beside_what_it_replaces": "leaked",
    }


def test_what_shares_older_memory_adds_none(run: Runner) -> None:
    """A slot that each run gives another alias, or that is filled once, of a tensor or an array that was there before."""
    found = run(
        """
        import numpy as np
        import torch

        OLDER, ARRAY, MODEL = torch.ones(600_000), np.ones(300_000), torch.nn.Linear(600, 600)
        SLOTS, MINE = {}, []

        def test_replaces_an_alias():
            SLOTS["alias"] = OLDER.data

        def test_replaces_a_state():
            SLOTS["state"] = MODEL.state_dict()

        def test_fills_a_slot_with_a_view():
            SLOTS.setdefault("view", OLDER[3:])

        def test_replaces_one_of_an_array():
            SLOTS["array"] = torch.from_numpy(ARRAY)

        def test_replaces_one_by_dlpack():
            SLOTS["dlpack"] = torch.from_dlpack(OLDER)

        def test_retains_its_own():
            SLOTS["own"] = torch.ones(600_000)
            SLOTS["alias of its own"] = SLOTS["own"].data

        def test_retains_an_array_of_its_own():
            SLOTS["own array"] = torch.from_numpy(np.ones(300_000))

        def test_leaks_views():
            MINE.append(OLDER[3:])
        """
    )
    verdicts = {name.removeprefix("test_"): verdict for name, verdict in found.verdicts.items()}
    assert verdicts == {
        "replaces_an_alias": "noted",
        "replaces_a_state": "noted",
        "fills_a_slot_with_a_view": "noted",
        "replaces_one_of_an_array": "noted",
        "replaces_one_by_dlpack": "noted",
        "retains_its_own": "leaked",
        "retains_an_array_of_its_own": "leaked",
        "leaks_views": "leaked",
    }
    assert found.finding("test_replaces_an_alias")["bytes"] == 0
