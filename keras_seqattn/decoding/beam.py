"""`BeamSearch`: the most probable sequences among those whose prefixes are probable.

One step, for each sentence:

    candidates = the best C of all W V continuations            # _candidates
    of the first W: those that end compete for the N hypotheses # _add_ended
    of all: the best W that do not end are the live beams       # _choose_live
    finished = no live beam can still beat the N-th hypothesis  # _find_finished

Shapes: B sentences, W beams, V vocabulary, L capacity in generated tokens, N
hypotheses, C candidates, P prefix length.
"""

import dataclasses
import math
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor
from keras_seqattn.decoding.hypotheses import SpecialTokens
from keras_seqattn.decoding.methods import Greedy, Search, write_token
from keras_seqattn.decoding.processors import (
    FORBIDDEN,
    NO_CANDIDATE,
    best_of_all,
    gather,
    is_allowed,
    largest,
)

PENALTIES = ("length", "gnmt")


class BeamState(NamedTuple):
    """The beam state: W live beams and N hypotheses of each sentence, best first.

    "Ranking" is the sum of the log-probabilities that the processors left, by which the
    search compares; with a repetition penalty it differs from the model's own sum.
    """

    limits: Tensor  # int32 (B,): most tokens; 0 in rows that only fill the batch
    prefix: Tensor  # int32 (B, P): forced first tokens, padded; P is 0 without any
    finished: Tensor  # bool (B,): nothing of the sentence changes any more
    token: Tensor  # int32 (B, W): each beam's last token, which the next step reads
    token_ids: Tensor  # int32 (B, W, L): what each beam has said, padded
    ranking: Tensor  # float32 (B, W)
    log_probs: Tensor  # float32 (B, W): sums of the model's own log-probabilities
    num_ended: Tensor  # int32 (B,): number of hypotheses so far, those not kept too
    ended_ids: Tensor  # int32 (B, N, L): the best hypotheses, ends included
    ended_ranking: Tensor  # float32 (B, N): ranking over the length penalty
    ended_scores: Tensor  # float32 (B, N): log-probability over the length penalty


class Candidates(NamedTuple):
    """The best C continuations of a sentence's beams by one token, best first."""

    ranking: Tensor  # float32 (B, C)
    log_probs: Tensor  # float32 (B, C)
    parents: Tensor  # int32 (B, C): the beams that they continue
    token: Tensor  # int32 (B, C)


@keras.saving.register_keras_serializable(package="keras_seqattn")
@dataclasses.dataclass(frozen=True)
class BeamSearch(Search):
    """Keeps the best partial hypotheses of each sentence, its beams, and the best N.

    Each step continues W beams to the 2 W best of all continuations, W more for each
    further stop token. Of the first W of them, those that end are hypotheses; the best
    W that do not end are the beams of the next step. So no hypothesis ends a search by
    itself: it ends where no beam can still become better than the N-th hypothesis,
    however it goes on; with `patience` p also after p W hypotheses, which takes fewer
    steps but may miss the best. A hypothesis that has not ended at `max_length`
    competes by its score, that of the tokens it has, with those that ended before.

    score = log-probability / penalty(length) + coverage, where the length counts the
    end token, penalty(n) is n^a ("length") or ((5 + n) / 6)^a ("gnmt"), and coverage is
    b * sum over the source of log(min(attention received, 1)), with the mean attention
    of all layers and heads. With a repetition penalty hypotheses are ranked by the
    penalized log-probabilities; the scores given are of the model's own. The tokens of
    a forced prefix are certain: neither their log-probability nor their number counts
    in a score, though `max_length` and `min_length` count them.

    With a width of 1 this is greedy search: its one beam ends the search when it ends.

    Args:
        width: Number of beams W a sentence.
        length_penalty: Exponent a, at least 0; 0 compares log-probabilities, which
            prefers what is short.
        penalty: "length" or "gnmt".
        num_hypotheses: Number of hypotheses N returned, at most `width`.
        coverage_penalty: Factor b, at least 0; needs a model whose `initial_state`
            takes `coverage`.
        patience: Number above 0, of which W times as many hypotheses end the search of
            a sentence, as in most engines at 1; None searches on while any live
            beginning can still win.
        min_length: Number of tokens before the end token may come.
        repetition_penalty: Factor of the log-probability of what was said already;
            1 for none.
        no_repeat_ngram: Length of the sequences of tokens that no hypothesis may hold
            twice; 0 for none.
        banned_ids: Token ids that are never generated.
        stop_ids: Token ids that end a hypothesis as the end token does.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> BeamSearch(width=5, num_hypotheses=3).width
        5

    Reference:
        Penalties: Wu et al. 2016, section 7. Stop: Huang et al. 2017, "When to Finish?"
        Patience: Kasai et al. 2022, "A Call for Clarity in Beam Search".
        Differs: the bound takes the length limit for the length.
    """

    width: int = 4
    length_penalty: float = 1.0
    penalty: str = "length"
    num_hypotheses: int = 1
    coverage_penalty: float = 0.0
    patience: float | None = None

    def __post_init__(self) -> None:
        """Checks the arguments."""
        super().__post_init__()
        arguments.positive_integer("width", self.width)
        arguments.positive_integer("num_hypotheses", self.num_hypotheses)
        for name in ("length_penalty", "coverage_penalty"):
            arguments.number(name, getattr(self, name), least=0)
        if self.patience is not None:
            arguments.number("patience", self.patience, above=0.0)
        arguments.choice("penalty", self.penalty, PENALTIES)
        if self.num_hypotheses > self.width:
            raise ValueError(
                f"`num_hypotheses` must be at most `width`, {self.width}. "
                f"Received: num_hypotheses={self.num_hypotheses!r}."
            )

    @property
    def needs_coverage(self) -> bool:
        """Whether the state is to sum the attention that the source gets."""
        return self.coverage_penalty > 0.0

    def begin(
        self,
        limits: Tensor,
        seeds: Tensor,
        prefix: Tensor,
        capacity: int,
        tokens: SpecialTokens,
    ) -> BeamState:
        """Makes the state before the first step: one live beginning, no more.

        Args:
            limits: Int32 tensor `(B,)`, each sentence's most tokens, at most L; 0 for a
                sentence that only fills the batch.
            seeds: Unused here.
            prefix: Int32 tensor `(B, P)` of forced first tokens, padded.
            capacity: Number L of generated tokens that there is memory for.
            tokens: The `SpecialTokens`.
        """
        batch_size, width, kept = limits.shape[0], self.width, self.num_hypotheses
        first = ops.where(ops.arange(width) == 0, 0.0, FORBIDDEN)
        none = ops.broadcast_to(ops.cast(first, "float32"), (batch_size, width))
        pad = tokens.pad_id
        return BeamState(
            limits=limits,
            prefix=prefix,
            finished=limits <= 0,
            token=ops.full((batch_size, width), tokens.start_id, "int32"),
            token_ids=ops.full((batch_size, width, capacity), pad, "int32"),
            ranking=none,
            log_probs=none,
            num_ended=ops.zeros((batch_size,), "int32"),
            ended_ids=ops.full((batch_size, kept, capacity), pad, "int32"),
            ended_ranking=ops.full((batch_size, kept), FORBIDDEN, "float32"),
            ended_scores=ops.full((batch_size, kept), -math.inf, "float32"),
        )

    def advance(
        self,
        state: BeamState,
        log_probs: Tensor,
        index: Tensor,
        tokens: SpecialTokens,
        coverage: Tensor | None = None,
    ) -> tuple[BeamState, Tensor | None]:
        """Takes one step.

        Args:
            state: The state before.
            log_probs: Float32 tensor `(B, W, V)`, the model's own.
            index: The position, a scalar int32 tensor, or `(B,)` of each sentence's
                own.
            tokens: The `SpecialTokens`.
            coverage: Float32 tensor `(B, W)`, the sum of log(min(attention received,
                1)) of each beam, or None.

        Returns:
            The state after, and the beams `(B, W)` that the new ones go on from.
        """
        log_probs, allowed = self.process(
            log_probs, state.token_ids, index, tokens, state.prefix
        )
        candidates = self._candidates(state, log_probs, allowed, tokens)
        ends = ops.equal(candidates.token, tokens.end_id)  # (B, C)
        forced = _count_forced(state.prefix, tokens)
        new = self._add_ended(state, candidates, ends, index, forced, coverage)
        new, parents = self._choose_live(new, candidates, ends, index)
        new = new._replace(finished=self._find_finished(new, index, forced))
        kept = [
            _where_sentences(state.finished, before, after)
            for before, after in zip(state, new, strict=True)
        ]
        return BeamState(*kept), parents

    def _candidates(
        self,
        state: BeamState,
        log_probs: Tensor,
        allowed: Tensor,
        tokens: SpecialTokens,
    ) -> Candidates:
        """Finds the best continuations, as many as may end and W that do not."""
        batch_size, _, vocabulary_size = log_probs.shape
        ranking = state.ranking[..., None] + allowed  # (B, W, V)
        count = min(2 + len(self.stop_ids), vocabulary_size) * self.width
        ranking, indices = best_of_all(ranking, count)  # (B, C)
        parents, token = indices // vocabulary_size, indices % vocabulary_size
        added = gather(ops.reshape(log_probs, (batch_size, -1)), indices)
        return Candidates(
            ranking=ranking,
            log_probs=gather(state.log_probs, parents) + added,
            parents=parents,
            token=self.replace_stop_ids(token, tokens),
        )

    def _add_ended(
        self,
        state: BeamState,
        candidates: Candidates,
        ends: Tensor,
        index: Tensor,
        forced: Tensor,
        coverage: Tensor | None,
    ) -> BeamState:
        """Merges what ends, or is cut, of the first W candidates into the hypotheses.

        Args:
            state: The state before.
            candidates: The `Candidates`, C of them.
            ends: Bool tensor `(B, C)`, which of them end.
            index: The position.
            forced: Float tensor `(B, 1)`, the number of forced tokens.
            coverage: Float tensor `(B, W)` or None.
        """
        first = Candidates(*(x[:, : self.width] for x in candidates))
        cut = ops.reshape(index + 1 >= state.limits, (-1, 1))
        ends = ops.logical_or(ends[:, : self.width], cut)
        new = ops.logical_and(ends, is_allowed(first.ranking))
        penalty = self._penalty_without(forced, index + 1)
        ranking, scores = first.ranking / penalty, first.log_probs / penalty
        if coverage is not None:
            covered = self.coverage_penalty * gather(coverage, first.parents)
            ranking, scores = ranking + covered, scores + covered
        ranking = ops.where(new, ranking, FORBIDDEN)
        token_ids = gather(state.token_ids, first.parents)
        token_ids = write_token(token_ids, first.token, index)
        ranking = ops.concatenate([state.ended_ranking, ranking], axis=1)
        scores = ops.concatenate([state.ended_scores, scores], axis=1)
        token_ids = ops.concatenate([state.ended_ids, token_ids], axis=1)
        # Of equal values the first are taken: what is missing stays so.
        ranking, best = largest(ranking, self.num_hypotheses)
        num_new = ops.sum(ops.cast(new, "int32"), axis=1)
        return state._replace(
            num_ended=state.num_ended + num_new,
            ended_ids=gather(token_ids, best),
            ended_ranking=ranking,
            ended_scores=gather(scores, best),
        )

    def _choose_live(
        self, state: BeamState, candidates: Candidates, ends: Tensor, index: Tensor
    ) -> tuple[BeamState, Tensor]:
        """Makes the best W candidates that do not end live; returns their parents."""
        ranking = ops.where(ends, NO_CANDIDATE, candidates.ranking)
        ranking, chosen = largest(ranking, self.width)
        live = Candidates(*(gather(x, chosen) for x in candidates))
        token_ids = gather(state.token_ids, live.parents)
        state = state._replace(
            token=live.token,
            token_ids=write_token(token_ids, live.token, index),
            # What was forbidden before stays so: clamped, and not summed further.
            ranking=ops.maximum(ranking, FORBIDDEN),
            log_probs=live.log_probs,
        )
        return state, live.parents

    def _find_finished(self, state: BeamState, index: Tensor, forced: Tensor) -> Tensor:
        """Computes where no live beginning can still become one of the hypotheses."""
        worst = state.ended_ranking[:, -1]
        over = index + 1 >= state.limits
        if self.patience is not None:
            enough = math.ceil(self.patience * self.width)
            over = ops.logical_or(over, state.num_ended >= enough)
        if self.width == 1:
            return ops.logical_or(over, is_allowed(worst))
        # A beam's log-probability can only fall, and coverage is at most 0: divided by
        # the penalty of the longest output, it bounds what the beam can reach.
        longest = self._penalty_without(forced, state.limits)[:, 0]
        possible = ops.max(state.ranking, axis=1) / longest
        return ops.logical_or(over, worst >= possible)

    def _penalty_without(self, forced: Tensor, length: Tensor) -> Tensor:
        """Computes the penalty `(B, 1)` of a length without its forced tokens."""
        length = ops.cast(ops.reshape(length, (-1, 1)), "float32") - forced
        return self.penalty_of(ops.maximum(length, 1.0))

    def penalty_of(self, length: Tensor) -> Tensor:
        """Computes what the log-probability of a number of tokens is divided by.

        Args:
            length: Float tensor or array of lengths, the end token included.

        Returns:
            The same, of penalties.
        """
        if not hasattr(length, "shape"):
            length = np.asarray(arguments.tensor("length", length), "float32")
        base = length if self.penalty == "length" else (5.0 + length) / 6.0
        return base**self.length_penalty

    def results(self, state: BeamState) -> tuple[np.ndarray, np.ndarray]:
        """Returns the hypotheses, which were found best first.

        Args:
            state: The state at the end.

        Returns:
            Token ids `(B, N, L)`, ends included, and scores `(B, N)`.
        """
        return state.ended_ids, state.ended_scores


def _count_forced(prefix: Tensor, tokens: SpecialTokens) -> Tensor:
    """Counts the forced tokens of each sentence, float32 `(B, 1)`."""
    real = ops.cast(prefix != tokens.pad_id, "float32")
    return ops.sum(real, axis=1, keepdims=True)


def _where_sentences(chosen: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Chooses between whole sentences of two tensors `(B, ...)`."""
    return ops.where(ops.reshape(chosen, (-1, *[1] * (len(x.shape) - 1))), x, y)


def with_hypotheses(search: Search, count: int) -> Search:
    """Returns a search that finds a number of hypotheses a sentence.

    Args:
        search: A search.
        count: Number of hypotheses; 1 leaves the search as it is.

    Returns:
        A search; of a `Greedy` a `BeamSearch`, of at least 4 beams.

    Example:
        >>> with_hypotheses(BeamSearch(width=2), 3).width
        3
    """
    if count == 1:
        return search
    if type(search) is Greedy:
        options = search.get_config()
        options.pop("scored", None)  # as a beam search always is
        search = BeamSearch(width=max(4, count), **options)
    if isinstance(search, BeamSearch):
        search = dataclasses.replace(search, width=max(search.width, count))
    return dataclasses.replace(search, num_hypotheses=count)
