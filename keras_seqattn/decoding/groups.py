"""Diverse beam search: groups of beams that avoid each other's tokens.

Each group is a beam search of its own, with its part of the state. The groups take each
step one after another, and a token that earlier groups chose at it is less probable.
Shapes: B sentences, W beams, V vocabulary.
"""

from typing import Any

from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.decoding.beam_state import BeamState, Step, join, part_of
from keras_seqattn.decoding.processors import FORBIDDEN, is_allowed


def advance_groups(
    search: Any, state: BeamState, step: Step
) -> tuple[BeamState, Tensor]:
    """Takes one step of each group, which avoids the tokens that earlier groups chose.

    Returns the new state, and the beams `(B, W)` that the new beams continue.
    """
    group, count = search.group, search.num_groups
    batch_size, _, size = step.log_probs.shape
    chosen = ops.zeros((batch_size, size), "float32")  # how often each token
    states, parents = [], []
    for number in range(count):
        first = number * group.width
        here = slice(first, first + group.width)
        part = part_of(state, number, count)
        own = step._replace(
            avoided=search.diversity_penalty * chosen,
            log_probs=step.log_probs[:, here],
            choice_log_probs=step.choice_log_probs[:, here],
            coverage=None if step.coverage is None else step.coverage[:, here],
        )
        new, from_beams = group.advance_beams(part, own)
        live = ops.cast(is_allowed(new.ranking), "float32")[..., None]
        picked = ops.one_hot(new.token, size, dtype="float32")
        chosen = chosen + ops.sum(picked * live, axis=1)
        # No beam of a finished group is live, so the group finds no more hypotheses.
        is_dead = ops.logical_not(ops.any(is_allowed(part.ranking), axis=1))
        over = ops.logical_or(new.finished, is_dead)
        ranking = ops.where(over[:, None], FORBIDDEN, new.ranking)
        states.append(new._replace(ranking=ranking, finished=over))
        parents.append(from_beams + first)
    finished = ops.all(ops.stack([x.finished for x in states], axis=1), axis=1)
    new = join(states)._replace(finished=finished)
    return new, ops.concatenate(parents, axis=1)
