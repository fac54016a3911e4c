"""`BeamState`: what a beam search carries from step to step.

Shapes: B sentences, W beams, L capacity in generated tokens, N hypotheses, G groups, P
prefix length, V vocabulary, C candidates, K constraints, A alternatives of each.
"""

from collections.abc import Sequence
from typing import NamedTuple

import keras
from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.decoding.constraints import Constraints
from keras_seqattn.decoding.hypotheses import SpecialTokens

# The fields that are divided among the groups of beams, along the second axis. The
# other fields belong to the whole sentence.
OF_GROUPS = (
    "token",
    "token_ids",
    "ranking",
    "log_probs",
    "num_ended",
    "ended_ids",
    "ended_ranking",
    "ended_scores",
    "progress",
)


class BeamState(NamedTuple):
    """The beam state: W live beams, in order of choice, and N hypotheses, best first.

    "Ranking" is the sum of the log-probabilities after the processors, by which the
    search compares. With a repetition penalty or `biased_ids` it differs from the
    model's own sum.
    """

    limits: Tensor  # int32 (B,): most tokens; 0 in rows that only fill the batch
    prefix: Tensor  # int32 (B, P): forced first tokens, padded; P is 0 without any
    finished: Tensor  # bool (B,): nothing of the sentence changes any more
    token: Tensor  # int32 (B, W): each beam's last token, which the next step reads
    token_ids: Tensor  # int32 (B, W, L): each beam's tokens so far, padded
    ranking: Tensor  # float32 (B, W)
    log_probs: Tensor  # float32 (B, W): sums of the model's own log-probabilities
    num_ended: Tensor  # int32 (B, G): hypotheses found so far, kept or not
    ended_ids: Tensor  # int32 (B, N, L): the best hypotheses, ends included
    ended_ranking: Tensor  # float32 (B, N): ranking / penalty + coverage
    ended_scores: Tensor  # float32 (B, N): log-probability / penalty + coverage
    constraints: Constraints | tuple[()] = ()  # phrases to generate; () for none
    progress: Tensor | tuple[()] = ()  # int32 (B, W, K, A): how far each phrase is


class Step(NamedTuple):
    """What a step of a beam search, or of one of its groups, reads beside the state."""

    log_probs: Tensor  # float32 (B, W, V), the model's own
    choice_log_probs: Tensor  # float32 (B, W, V), to choose tokens by
    index: Tensor  # int32: the position, a scalar or (B,)
    tokens: SpecialTokens
    forced: Tensor  # float32 (B, 1): the number of forced tokens
    coverage: Tensor | None  # float32 (B, W): the coverage of each beam, or None
    avoided: Tensor | None = None  # float32 (B, V): subtracted for the choice alone

    def to_choose_by(self, log_probs: Tensor) -> Tensor:
        """Lowers log-probabilities `(B, W, V)` by what is avoided."""
        return log_probs if self.avoided is None else log_probs - self.avoided[:, None]


class Candidates(NamedTuple):
    """C continuations of a sentence's beams by one token, in the order of choice."""

    ranking: Tensor  # float32 (B, C)
    log_probs: Tensor  # float32 (B, C)
    parents: Tensor  # int32 (B, C): the beams that they continue
    token: Tensor  # int32 (B, C)
    progress: Tensor | tuple[()] = ()  # int32 (B, C, K, A), of constraints


def part_of(
    state: BeamState, number: int, count: int, names: Sequence[str] = OF_GROUPS
) -> BeamState:
    """Returns the state of one group or penalty, with its part of the named fields."""

    def take(x: Tensor) -> Tensor:
        size = x.shape[1] // count
        return x[:, number * size : (number + 1) * size]

    parts = {name: getattr(state, name) for name in names}
    return state._replace(**keras.tree.map_structure(take, parts))


def join(states: list[BeamState], names: Sequence[str] = OF_GROUPS) -> BeamState:
    """Joins states of groups or of penalties, which differ in the named fields."""
    parts = [{name: getattr(state, name) for name in names} for state in states]
    joined = keras.tree.map_structure(lambda *x: ops.concatenate(x, axis=1), *parts)
    return states[0]._replace(**joined)
