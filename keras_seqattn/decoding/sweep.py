"""`BeamSweep`: beam searches that differ only in their length penalty, as one.

The penalty decides which hypothesis is best and when the search may end, but not which
beams are live. So one pass finds what each of the searches would find.
Shapes: B sentences, W beams, L capacity in generated tokens, N penalties, with one
hypothesis each.
"""

import dataclasses
import functools
from collections.abc import Iterator

from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.decoding.beam import BeamSearch
from keras_seqattn.decoding.beam_state import (
    BeamState,
    Candidates,
    Step,
    join,
    part_of,
)
from keras_seqattn.decoding.hypotheses import SpecialTokens

# The fields of a state that each of the searches has for itself: its hypotheses. As
# many have ended in each, so `num_ended` is not one of them.
ENDED = ("ended_ids", "ended_ranking", "ended_scores")


@dataclasses.dataclass(frozen=True)
class BeamSweep(BeamSearch):
    """Finds for each of N length penalties the best hypothesis of its `BeamSearch`.

    Its hypotheses come in the order of the penalties, not best first. It has one group
    of beams, and a `num_hypotheses` of 1.
    """

    length_penalties: tuple[float, ...] = (1.0,)

    def searches(self) -> Iterator[BeamSearch]:
        """Yields the searches that this one stands for."""
        config = self.get_config()
        for penalty in config.pop("length_penalties"):
            yield BeamSearch(**{**config, "length_penalty": penalty})

    def begin(
        self,
        limits: Tensor,
        seeds: Tensor,
        prefix: Tensor,
        capacity: int,
        tokens: SpecialTokens,
    ) -> BeamState:
        """Makes the state before the first step, with a hypothesis for each penalty."""
        state = super().begin(limits, seeds, prefix, capacity, tokens)
        return join([state] * len(self.length_penalties), ENDED)

    def _add_ended(
        self, state: BeamState, candidates: Candidates, ends: Tensor, step: Step
    ) -> BeamState:
        given = (candidates, ends, step)
        each = [search._add_ended(part, *given) for search, part in self._parts(state)]
        return join(each, ENDED)

    def _find_finished(self, state: BeamState, step: Step) -> Tensor:
        each = (
            search._find_finished(part, step) for search, part in self._parts(state)
        )
        return functools.reduce(ops.logical_and, each)

    def _parts(self, state: BeamState) -> Iterator[tuple[BeamSearch, BeamState]]:
        """Yields each of the searches, and its part of the state."""
        count = len(self.length_penalties)
        for number, search in enumerate(self.searches()):
            yield search, part_of(state, number, count, ENDED)
