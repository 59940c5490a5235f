"""Count attentions as the fused kernels of CUDA do, which keep no scores, where the CPU computes them by single operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpuleak.adapters.torch import cuda_rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuleak.adapters.torch.cuda_blocks import BlockLog

UNFUSED: Final = "an attention has run for which CUDA has no fused kernel"


class _Attention(NamedTuple):
    """An attention's nodes, from the first to before the end, the number of its scores, and a bound of what its backward pass takes inside."""

    first: int
    end: int
    scores: int
    most_inside: int


class AttentionCall:
    """What one call from Python to torch has done of an attention."""

    def __init__(self) -> None:
        self.factors: list[Any] = []
        """The query and the turned key, to which an attention of single operators applies its scale first, and what masks them."""
        self.is_masked = False
        """Whether what is added last is the mask, in place where no mode is."""
        self.scores = self.rows = self.keys = 0
        """The number of the scores of a fused attention, from them to the end of the call, and their last two dimensions."""

    def note(self, name: str, given: Sequence[Any]) -> None:
        """Note what scales or masks a product."""
        if name == "mul.Scalar":
            self.factors = [*self.factors, given[0]][:2] if given[0].dim() > 2 else []
        elif name == "add.Tensor":
            self.is_masked = len(self.factors) == 2
            if self.is_masked:
                self.factors = [*self.factors, *given[1:2]]


class Attentions:
    """The fused attentions of a run."""

    def __init__(self, torch: Any, blocks: BlockLog) -> None:
        self._native: Any = torch._C
        self._blocks = blocks
        self._known: list[_Attention] = []

    def note(
        self, name: str, given: Sequence[Any], results: Sequence[Any], call: AttentionCall, made: list[int]
    ) -> None:
        """Note an operator; what the call has `made` so far is not taken where it turns out to be a fused attention."""
        call.note(name, given)
        if name == "_scaled_dot_product_flash_attention_for_cpu.default":
            query, key, _, *mask = given
            if not self._is_fused(query, key, *mask):
                self._blocks.lack(UNFUSED)
        elif name == "_safe_softmax.default":
            factors, call.factors = call.factors, []
            if len(factors) > 1 and self._is_fused(*factors, is_turned=True):
                call.scores = int(results[0].numel())
                call.rows, call.keys = map(int, results[0].shape[-2:])
                self._blocks.omit(made)

    def _is_fused(self, query: Any, key: Any, mask: Any = None, *, is_turned: bool = False) -> bool:
        is_on = self._native._get_mem_efficient_sdp_enabled() or self._native._get_flash_sdp_enabled()
        return is_on and cuda_rules.is_fused(query, key, mask, is_turned=is_turned)

    def note_result(self, name: str, result: Any, call: AttentionCall, first_node: int, fresh: list[int]) -> None:
        """Count what a fused attention makes after its scores: its result alone, with which it ends."""
        self._blocks.omit(fresh)
        if name == "bmm.default" and fresh:
            self._blocks.sizes[fresh[-1]] = sum(cuda_rules.attention_bytes(result))
            batch, width = call.scores // (call.rows * call.keys), int(result.shape[-1])
            most = cuda_rules.most_in_attention_gradient(batch, call.rows, call.keys, width)
            self._known.append(_Attention(first_node, self._native._autograd._get_sequence_nr(), call.scores, most))

    def note_gradient(self, node: Any, made: Any, fresh: list[int]) -> bool:
        """Count no gradients of scores, which a fused attention has not; the others may be of other types, or less.

        Return whether the node that runs is of an attention.
        """
        number = -1 if node is None or not self._known else node._sequence_nr()
        attention = next((one for one in self._known if one.first <= number < one.end), None)
        if attention is None:
            return False
        if made.numel() == attention.scores:
            self._blocks.omit(fresh)
            fresh = [self._blocks.pulse(attention.most_inside)]
        self._blocks.doubt("scaled_dot_product_attention", *fresh)
        return True
