"""`BeamSweep`: beam searches that differ in their length penalty alone, as one.

The penalty decides which of the hypotheses is best, and when the search may end; which
beams live does not depend on it. So one pass finds what each of the searches finds.
Shapes: B sentences, W beams, L capacity in generated tokens, N penalties.
"""

import dataclasses
import functools
from collections.abc import Iterator

from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.decoding.beam import BeamSearch
from keras_seqattn.decoding.beam_state import BeamState, Candidates
from keras_seqattn.decoding.hypotheses import SpecialTokens


@dataclasses.dataclass(frozen=True)
class BeamSweep(BeamSearch):
    """Finds the best hypothesis for each of several length penalties.

    Its hypotheses come in the order of the penalties, not best first.

    Args:
        length_penalties: Tuple of N exponents, for each of which the hypothesis is that
            of a `BeamSearch` with that `length_penalty`.

    Example:
        >>> len(list(BeamSweep(width=4, length_penalties=(0.6, 1.0)).searches()))
        2
    """

    length_penalties: tuple[float, ...] = (1.0,)

    def searches(self) -> Iterator[BeamSearch]:
        """Yields the searches that this one stands for."""
        fields = {field.name for field in dataclasses.fields(BeamSearch)}
        config = {name: getattr(self, name) for name in fields - {"length_penalty"}}
        for penalty in self.length_penalties:
            yield BeamSearch(length_penalty=penalty, **config)

    def begin(
        self,
        limits: Tensor,
        seeds: Tensor,
        prefix: Tensor,
        capacity: int,
        tokens: SpecialTokens,
    ) -> BeamState:
        """Makes the state before the first step, with a hypothesis a penalty."""
        state = super().begin(limits, seeds, prefix, capacity, tokens)
        return _merge([state] * len(self.length_penalties))

    def _add_ended(
        self,
        state: BeamState,
        candidates: Candidates,
        ends: Tensor,
        index: Tensor,
        forced: Tensor,
        coverage: Tensor | None,
    ) -> BeamState:
        given = (candidates, ends, index, forced, coverage)
        return _merge(
            [
                search._add_ended(_take_one(state, number), *given)
                for number, search in enumerate(self.searches())
            ]
        )

    def _find_finished(self, state: BeamState, index: Tensor, forced: Tensor) -> Tensor:
        each = (
            search._find_finished(_take_one(state, number), index, forced)
            for number, search in enumerate(self.searches())
        )
        return functools.reduce(ops.logical_and, each)


def _take_one(state: BeamState, number: int) -> BeamState:
    """Returns the state of one of the searches."""
    here = slice(number, number + 1)
    return state._replace(
        ended_ids=state.ended_ids[:, here],
        ended_ranking=state.ended_ranking[:, here],
        ended_scores=state.ended_scores[:, here],
    )


def _merge(states: list[BeamState]) -> BeamState:
    """Joins the states of all searches, which differ in their hypotheses alone."""
    names = ("ended_ids", "ended_ranking", "ended_scores")
    return states[0]._replace(
        **{
            name: ops.concatenate([getattr(state, name) for state in states], axis=1)
            for name in names
        }
    )
