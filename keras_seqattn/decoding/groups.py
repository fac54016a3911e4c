"""Diverse beam search: groups of beams that avoid each other's tokens.

Each group is a beam search by itself, of its part of the state. One after another they
take a step, and a token that groups before have chosen at it is less probable.
"""

from typing import Any

from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.decoding.beam_state import BeamState, join, part_of
from keras_seqattn.decoding.hypotheses import SpecialTokens
from keras_seqattn.decoding.processors import FORBIDDEN, is_allowed


def advance_groups(
    search: Any,
    state: BeamState,
    log_probs: Tensor,
    choice_log_probs: Tensor,
    index: Tensor,
    tokens: SpecialTokens,
    coverage: Tensor | None,
) -> tuple[BeamState, Tensor]:
    """Takes one step of each group, which avoids what those before it chose.

    `choice_log_probs` `(B, W, V)` are what to choose by. Returns the state after, and
    the beams `(B, W)` that the new ones go on from.
    """
    group, count = search.group, search.num_groups
    batch_size, _, size = log_probs.shape
    chosen = ops.zeros((batch_size, size), "float32")  # how often each token
    states, parents = [], []
    for number in range(count):
        first = number * group.width
        here = slice(first, first + group.width)
        part = part_of(state, number, count)
        new, from_beams = group.advance_beams(
            part,
            log_probs[:, here],
            choice_log_probs[:, here],
            index,
            tokens,
            None if coverage is None else coverage[:, here],
            search.diversity_penalty * chosen,
        )
        live = ops.cast(is_allowed(new.ranking), "float32")[..., None]
        chosen = chosen + ops.sum(ops.one_hot(new.token, size) * live, axis=1)
        # Of a group that is finished no beam is live, so nothing is added to it.
        is_dead = ops.logical_not(ops.any(is_allowed(part.ranking), axis=1))
        over = ops.logical_or(new.finished, is_dead)
        ranking = ops.where(over[:, None], FORBIDDEN, new.ranking)
        states.append(new._replace(ranking=ranking, finished=over))
        parents.append(from_beams + first)
    finished = ops.all(ops.stack([x.finished for x in states], axis=1), axis=1)
    new = join(states)._replace(finished=finished)
    return new, ops.concatenate(parents, axis=1)
