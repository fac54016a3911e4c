"""`ConstrainedBeamSearch`: a beam search whose hypotheses contain given phrases.

For each beam a step finds the best W + 1 continuations (and one more for each of
`stop_ids`), the next tokens of the phrases that are still missing, and the end token
(`_continuations`). It keeps those that leave few enough tokens missing
(`_count_missing`): none if they end, otherwise no more than there is space for.
Continuations with equally many missing tokens form a bank. The beams are shared out
evenly among the banks (`_allocate`), so that neither hypotheses that begin phrases too
early nor those that never begin one take all beams.
Shapes: B sentences, W beams, V vocabulary, M continuations of a sentence, C candidates
or tokens, K constraints, A alternatives of each, L tokens of the longest phrase, U
different tokens of a sentence's phrases.
"""

import dataclasses

import numpy as np
from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.decoding.beam import BeamSearch, with_beams
from keras_seqattn.decoding.beam_state import BeamState, Candidates, Step
from keras_seqattn.decoding.constraints import Constraints
from keras_seqattn.decoding.hypotheses import SpecialTokens
from keras_seqattn.decoding.methods import Search
from keras_seqattn.decoding.processors import (
    NO_CANDIDATE,
    best_of_each,
    count_forced,
    gather,
    is_allowed,
    largest,
)


@dataclasses.dataclass(frozen=True)
class ConstrainedBeamSearch(BeamSearch):
    """A `BeamSearch` whose hypotheses all meet the constraints of their sentence.

    `continuing_ids` has a bit for each token, packed by `numpy.packbits`: whether it
    continues the word before it. A phrase does not count where such a token follows.
    Empty if word boundaries do not matter.

    Reference:
        Hokamp and Liu 2017, "Lexically Constrained Decoding"; Post and Vilar 2018,
        "Fast Lexically Constrained Decoding with Dynamic Beam Allocation"; Hu et al.
        2019, "Improved Lexically Constrained Decoding", in vectorized form. Differs:
        one table a phrase in place of a trie, alternatives, whole words, and a bound
        by the length limit.
    """

    continuing_ids: bytes = b""

    def constrain(self, state: BeamState, constraints: Constraints) -> BeamState:
        """Returns the state before the first step, with the constraints to meet."""
        # Places that only fill the row are met: progress 1 is past their length, 0.
        empty = ops.cast(constraints.lengths == 0, "int32")[:, None]
        progress = ops.repeat(empty, self.width, axis=1)  # (B, W, K, A)
        return state._replace(constraints=constraints, progress=progress)

    def _candidates(self, state: BeamState, step: Step) -> Candidates:
        """Finds continuations that can meet the constraints, in order of choice."""
        log_probs, index, tokens = step.log_probs, step.index, step.tokens
        batch_size, width, size = log_probs.shape
        # (B, W, M / W), and (B, W, M / W, K, A)
        token, value, progress = self._continuations(state, step)
        missing = _count_missing(state.constraints, progress)
        ranking = state.ranking[..., None] + value
        ends = self.replace_stop_ids(token, tokens, state.prefix, index)
        ends = ends == tokens.end_id
        space = ops.reshape(state.limits - index - 1, (-1, 1, 1))
        # One place is kept for the end token, before which nothing may be missing.
        possible = missing < ops.where(ends, 1, ops.maximum(space, 1))
        ranking = ops.where(possible, ranking, NO_CANDIDATE)
        # If all that is possible is forbidden, beams that miss nothing end anyway.
        is_stuck = ops.logical_not(ops.any(is_allowed(ranking), axis=(1, 2)))
        must_end = ops.logical_and(is_stuck[:, None], possible[..., -1])  # (B, W)
        ended = state.ranking + log_probs[..., tokens.end_id]
        last = ops.where(must_end, ended, ranking[..., -1])
        ranking = ops.concatenate([ranking[..., :-1], last[..., None]], axis=-1)
        count = token.shape[-1]
        missing, ranking = (
            ops.reshape(x, (batch_size, width * count)) for x in (missing, ranking)
        )
        # As many as `BeamSearch._candidates` finds, so that W of them do not end.
        most = min(width * (2 + len(self.stop_ids)), width * count)
        chosen = _allocate(ranking, missing, most)  # (B, C)
        parents = chosen // count
        token = gather(ops.reshape(token, (batch_size, -1)), chosen)
        added = gather(ops.reshape(log_probs, (batch_size, -1)), parents * size + token)
        progress = ops.reshape(progress, (batch_size, -1, *progress.shape[3:]))
        return Candidates(
            ranking=gather(ranking, chosen),
            log_probs=gather(state.log_probs, parents) + added,
            parents=parents,
            token=self.replace_stop_ids(token, tokens, state.prefix, index),
            progress=gather(progress, chosen),
        )

    def _continuations(
        self, state: BeamState, step: Step
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Finds each beam's best continuations, its phrases' next tokens, and the end.

        Returns the tokens and the values to choose them by, `(B, W, M / W)`, and the
        progress of each phrase after them, `(B, W, M / W, K, A)`.
        """
        batch_size, width, size = step.choice_log_probs.shape
        count = min(width + 1 + len(self.stop_ids), size)
        value, token = best_of_each(step.choice_log_probs, count)
        end = ops.full((batch_size, 1), step.tokens.end_id, "int32")
        own = ops.concatenate([state.constraints.tokens, end], axis=1)[:, None]
        is_end = ops.arange(own.shape[2], dtype="int32") == own.shape[2] - 1
        next_token = ops.repeat(own, width, axis=1)  # (B, W, U + 1)
        every = ops.concatenate([token, next_token], axis=-1)
        progress = self._advance_phrases(state, every, step.index, step.tokens)
        # The padding of `own` is never useful: no phrase has it.
        before = _count_missing(state.constraints, state.progress[:, :, None])
        fewer = _count_missing(state.constraints, progress[:, :, count:]) < before
        useful = ops.where(is_end, before == 0, fewer)
        # A phrase may contain a token that the search's options forbid: it is then
        # chosen by the model's own log-probability. The end token stays forbidden.
        next_value = ops.take_along_axis(step.choice_log_probs, next_token, axis=-1)
        is_kept = ops.logical_or(is_allowed(next_value), is_end)
        own_log_probs = step.to_choose_by(step.log_probs)
        own_value = ops.take_along_axis(own_log_probs, next_token, axis=-1)
        next_value = ops.where(is_kept, next_value, own_value)
        next_value = ops.where(useful, next_value, NO_CANDIDATE)
        same = token[..., None] == next_token[:, :, None]  # (B, W, count, U + 1)
        twice = ops.any(ops.logical_and(same, useful[:, :, None]), axis=-1)
        value = ops.where(twice, NO_CANDIDATE, value)
        return every, ops.concatenate([value, next_value], axis=-1), progress

    def _advance_phrases(
        self, state: BeamState, token: Tensor, index: Tensor, tokens: SpecialTokens
    ) -> Tensor:
        """Computes phrases' progress `(B, W, C, K, A)` after tokens `(B, W, C)`."""
        # (B, K, A, L + 1, U) and (B, W, K, A)
        table, progress = state.constraints.next, state.progress
        shape = table.shape
        phrases = ops.arange(shape[0] * shape[1] * shape[2], dtype="int32")
        # Where each phrase's rows begin in the table, (B, 1, K, A).
        phrases = ops.reshape(phrases, (shape[0], 1, *shape[1:3])) * shape[3]
        # A phrase met for good (n + 1) has no row; its progress is set at the end.
        rows = ops.minimum(progress, state.constraints.lengths[:, None])  # (B, W, K, A)
        after = ops.take(ops.reshape(table, (-1, shape[4])), phrases + rows, axis=0)
        # A product with one-hot vectors (B, W, C, U) picks each token's column. A token
        # of no phrase has none: 0, no progress.
        same = token[..., None] == state.constraints.tokens[:, None, None]
        after = ops.einsum(
            "bwcu,bwkau->bwcka", ops.cast(same, "float32"), ops.cast(after, "float32")
        )
        after = ops.cast(after, "int32")  # (B, W, C, K, A)
        progress = progress[:, :, None]
        lengths = state.constraints.lengths[:, None, None]
        forced = count_forced(state.prefix, tokens.pad_id)
        # What counts only at the beginning cannot begin after the first token that is
        # not forced.
        late = ops.reshape(index != forced, (-1, 1, 1, 1, 1))
        late = ops.logical_and(late, state.constraints.is_first[:, None, None])
        after = ops.where(ops.logical_and(late, progress == 0), 0, after)
        follows = ops.logical_not(self._continues(token))[..., None, None]
        # Met for good: before, or complete and followed by a token that ends its last
        # word.
        is_met = ops.logical_and(progress == lengths, follows)
        is_met = ops.logical_or(is_met, progress > lengths)
        return ops.where(is_met, lengths + 1, after)

    def _continues(self, token: Tensor) -> Tensor:
        """Marks the tokens that continue the word before them."""
        if not self.continuing_ids:
            return ops.zeros_like(token, dtype="bool")
        bits = np.unpackbits(np.frombuffer(self.continuing_ids, "uint8"))
        return ops.take(ops.convert_to_tensor(bits.astype("bool")), token, axis=0)


def _count_missing(constraints: Constraints, progress: Tensor) -> Tensor:
    """Counts the tokens that are missing, `(B, W, C, K, A)` to int32 `(B, W, C)`.

    These are the tokens of all constraints not yet met for good, without those of
    complete phrases or those already generated of one that is begun, whichever are
    more. They are not both left out, since the next token of the begun one may continue
    the last word of a complete one. A phrase whose first token would continue a word
    counts one more until it is begun. So some token always leaves fewer missing.
    """
    lengths = constraints.lengths[:, None, None]
    reserved = constraints.reserved[:, None, None]
    whole = ops.min(reserved, axis=-1)
    left = ops.min(ops.where(progress == 0, reserved, lengths - progress), axis=-1)
    is_open, is_complete = left >= 0, left == 0  # below 0: met for good
    begun = ops.where(is_open, ops.maximum(whole - left, 0), 0)
    complete = ops.sum(ops.where(is_complete, whole, 0), axis=-1)
    total = ops.sum(ops.where(is_open, whole, 0), axis=-1)
    return total - ops.maximum(complete, ops.max(begun, axis=-1))


def _allocate(ranking: Tensor, missing: Tensor, count: int) -> Tensor:
    """Chooses continuations, `(B, C)`: the best of each bank, then the second, ...

    A bank holds the continuations with equally many tokens missing. Of those with equal
    ranks in their banks, those with fewer missing come first.
    """
    places = ops.arange(ranking.shape[1], dtype="int32")
    this, other = ranking[:, :, None], ranking[:, None]  # (B, M, 1), (B, 1, M)
    first = ops.logical_and(this == other, places < places[:, None])
    better = ops.logical_or(other > this, first)
    same_bank = missing[:, None] == missing[:, :, None]
    rank = ops.sum(ops.cast(ops.logical_and(better, same_bank), "int32"), axis=-1)
    # Small enough numbers that float32 tells them apart.
    order = -ops.cast(rank * 1024 + ops.minimum(missing, 1023), "float32")
    order = ops.where(is_allowed(ranking), order, NO_CANDIDATE)
    return largest(order, count)[1]


def with_constraints(search: Search, continuing_ids: bytes = b"") -> Search:
    """Returns the search that meets constraints, with the options of another.

    For a `Greedy` it has 4 beams; a `Sample` is refused.
    """
    beams = with_beams(search)
    if not isinstance(beams, BeamSearch):
        raise ValueError(
            "`search` must be a `BeamSearch` or `Greedy` where there are constraints. "
            f"Received: search={search!r}."
        )
    return ConstrainedBeamSearch(**beams.get_config(), continuing_ids=continuing_ids)
