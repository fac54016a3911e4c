"""`BeamSearch`: the most probable sequences among those whose prefixes are probable.

One step, for each sentence:

    candidates = C continuations, in the order of choice        # _candidates
    of the first W: those that end compete for the N hypotheses # _add_ended
    of all: the first W that do not end are the live beams      # _choose_live
    finished = no live beam can still beat the N-th hypothesis  # _find_finished

Shapes: B sentences, W beams, V vocabulary, L capacity in generated tokens, N
hypotheses, C candidates, P prefix length.
"""

import dataclasses
import math
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor
from keras_seqattn.decoding.beam_state import BeamState, Candidates, Step, join
from keras_seqattn.decoding.groups import advance_groups
from keras_seqattn.decoding.hypotheses import SpecialTokens, best_first
from keras_seqattn.decoding.methods import (
    MOST_INTEGER,
    Greedy,
    Search,
    write_token,
)
from keras_seqattn.decoding.processors import (
    FORBIDDEN,
    MOST_ADDED,
    NO_CANDIDATE,
    best_of_all,
    count_forced,
    gather,
    is_allowed,
    largest,
)

PENALTIES = ("length", "gnmt")


@keras.saving.register_keras_serializable(package="keras_seqattn")
@dataclasses.dataclass(frozen=True)
class BeamSearch(Search):
    """Keeps the best W partial hypotheses of each sentence, its beams, and the best N.

    Each step takes the 2 W best of all one-token continuations of the beams, and W more
    for each of `stop_ids`. Among the first W, those that end become hypotheses; the
    best W that do not end are the beams of the next step. So one hypothesis does not
    end a search: it ends when no beam can still become better than the N-th hypothesis,
    however it continues. With `patience` p it also ends after p W hypotheses, which
    takes fewer steps but may miss the best. A beam that has not ended at `max_length`
    competes, by the score of its tokens so far, with the hypotheses that ended before.

    score = log-probability / penalty(length) + coverage. The length includes the end
    token; penalty(n) is n^a ("length") or ((5 + n) / 6)^a ("gnmt"). Coverage is b * sum
    over the source of log(min(attention received, 1)), with the mean attention of all
    layers and heads. With a repetition penalty or `biased_ids` hypotheses are ranked by
    the changed log-probabilities; the scores returned are the model's own, and may be
    in another order. The tokens of a forced prefix are certain: neither their
    log-probability nor their number counts in a score, though `max_length` and
    `min_length` count them.

    With a width of 1 this is greedy search: the search ends when its one beam ends.

    Args:
        width: Number of beams W per sentence.
        length_penalty: Exponent a, at least 0; 0 compares log-probabilities, which
            favours short hypotheses.
        penalty: "length" or "gnmt".
        num_hypotheses: Number of hypotheses N returned, at most `width`.
        coverage_penalty: Factor b, at least 0; needs a model whose `initial_state`
            takes `coverage`, or, in `search`, a state with the coverage.
        patience: Number p above 0: the search of a sentence, or of a group, ends after
            p times as many hypotheses as it has beams. Most engines use 1; None
            searches on while any live beam can still win.
        min_length: Number of tokens before the end token may come, at least 0.
        repetition_penalty: Positive number by which the log-probability of tokens
            already generated is multiplied; 1 for no penalty.
        no_repeat_ngram: Length of the token sequences that no hypothesis may contain
            twice; 0 for no limit.
        num_groups: Number of groups G that the beams are divided into, a divisor of
            `width`. Each group is its own search, which avoids the tokens that earlier
            groups chose to continue with at the same step, and keeps at least N / G
            hypotheses. So hypotheses differ more, but two groups may end with the same
            one.
        diversity_penalty: Number in [0, 1e5] that is subtracted from the
            log-probability of a token for each beam of earlier groups that chose it. It
            affects only the choice, not the scores.
        banned_ids: Token ids that are never generated.
        biased_ids: Dict of token ids to the number of nats, in [-1e5, 1e5], added to
            their log-probabilities when a token is chosen; scores stay the model's own.
        stop_ids: Token ids that end a hypothesis as the end token does.

    Raises:
        ValueError: If an argument is out of its range, or, once it searches, if a token
            id is not in the model's vocabulary.

    Example:
        >>> BeamSearch(width=5, num_hypotheses=3).width
        5

    Reference:
        Penalties: Wu et al. 2016, section 7. Stop: Huang et al. 2017, "When to Finish?"
        Patience: Kasai et al. 2022, "A Call for Clarity in Beam Search". Groups:
        Vijayakumar et al. 2018, "Diverse Beam Search", with Hamming diversity.
        Differs: the bound for stopping uses the length limit as the length.
    """

    width: int = 4
    length_penalty: float = 1.0
    penalty: str = "length"
    num_hypotheses: int = 1
    coverage_penalty: float = 0.0
    patience: float | None = None
    num_groups: int = 1
    diversity_penalty: float = 0.5

    def __post_init__(self) -> None:
        """Checks the arguments."""
        super().__post_init__()
        arguments.positive_integer("width", self.width)
        arguments.positive_integer("num_hypotheses", self.num_hypotheses)
        arguments.positive_integer("num_groups", self.num_groups)
        for name in ("length_penalty", "coverage_penalty"):
            arguments.number(name, getattr(self, name), least=0)
        given = self.diversity_penalty
        arguments.number("diversity_penalty", given, least=0, most=MOST_ADDED)
        arguments.number("patience", self.patience, above=0.0, optional=True)
        arguments.choice("penalty", self.penalty, PENALTIES)
        if self.num_hypotheses > self.width:
            raise ValueError(
                f"`num_hypotheses` must be at most `width`, {self.width}. "
                f"Received: num_hypotheses={self.num_hypotheses!r}."
            )
        if self.width % self.num_groups:
            raise ValueError(
                f"`num_groups` must divide `width`, {self.width}. "
                f"Received: num_groups={self.num_groups!r}."
            )

    @property
    def group(self) -> Self:
        """The search that each of the groups runs."""
        count = self.num_groups
        return dataclasses.replace(
            self,
            width=self.width // count,
            num_hypotheses=-(-self.num_hypotheses // count),
            num_groups=1,
        )

    @property
    def needs_coverage(self) -> bool:
        """Whether the state must sum the attention that the source gets."""
        return self.coverage_penalty > 0.0

    def begin(
        self,
        limits: Tensor,
        seeds: Tensor,
        prefix: Tensor,
        capacity: int,
        tokens: SpecialTokens,
    ) -> BeamState:
        """Makes the state before the first step, with a single live beam.

        Args:
            limits: Int32 tensor `(B,)`, the largest number of tokens of each sentence,
                at most L; 0 for a sentence that only fills the batch.
            seeds: Unused here.
            prefix: Int32 tensor `(B, P)` of forced first tokens, padded.
            capacity: Number L of generated tokens that there is memory for.
            tokens: The `SpecialTokens`.
        """
        if self.num_groups > 1:
            group = self.group.begin(limits, seeds, prefix, capacity, tokens)
            return join([group] * self.num_groups)
        batch_size, width, kept = limits.shape[0], self.width, self.num_hypotheses
        # All but the first are forbidden: W equal beams would continue alike. A tensor,
        # since two Python numbers would have Keras's default dtype.
        others = ops.convert_to_tensor(FORBIDDEN, "float32")
        first = ops.where(ops.arange(width, dtype="int32") == 0, 0.0, others)
        initial = ops.broadcast_to(first, (batch_size, width))
        pad = tokens.pad_id
        return BeamState(
            limits=limits,
            prefix=prefix,
            finished=limits <= 0,
            token=ops.full((batch_size, width), tokens.start_id, "int32"),
            token_ids=ops.full((batch_size, width, capacity), pad, "int32"),
            ranking=initial,
            log_probs=initial,
            num_ended=ops.zeros((batch_size, 1), "int32"),
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
            index: The position, a scalar int32 tensor, or `(B,)` where each sentence
                has its own.
            tokens: The `SpecialTokens`.
            coverage: Float32 tensor `(B, W)`, the sum of log(min(attention received,
                1)) of each beam, or None.

        Returns:
            The new state, and the beams `(B, W)` that the new beams continue.
        """
        log_probs, choice_log_probs = self.process(
            log_probs, state.token_ids, index, tokens, state.prefix
        )
        forced = count_forced(state.prefix, tokens.pad_id)
        forced = ops.cast(forced, "float32")[:, None]
        step = Step(log_probs, choice_log_probs, index, tokens, forced, coverage)
        if self.num_groups == 1:
            new, parents = self.advance_beams(state, step)
        else:
            new, parents = advance_groups(self, state, step)

        def kept_if_finished(before: Tensor, after: Tensor) -> Tensor:
            ones = [1] * (len(before.shape) - 1)
            finished = ops.reshape(state.finished, (-1, *ones))
            return ops.where(finished, before, after)

        return keras.tree.map_structure(kept_if_finished, state, new), parents

    def advance_beams(self, state: BeamState, step: Step) -> tuple[BeamState, Tensor]:
        """Takes one step of all beams, or of one group of them.

        Args:
            state: The state before.
            step: What the step reads, a named tuple: `log_probs` and
                `choice_log_probs`, float32 tensors `(B, W, V)`, the model's own and
                those to choose by; `index`, the position; `tokens`, the
                `SpecialTokens`; `forced`, float32 tensor `(B, 1)`, the number of forced
                tokens; `coverage`, float32 tensor `(B, W)` or None; `avoided`, float32
                tensor `(B, V)` that is subtracted only for the choice, or None.

        Returns:
            The new state, and the beams that the new beams continue.
        """
        lower = step.to_choose_by(step.choice_log_probs)
        candidates = self._candidates(state, step._replace(choice_log_probs=lower))
        if step.avoided is not None:
            # It affects which candidates are chosen, but not how they are ranked.
            added = ops.take_along_axis(step.avoided, candidates.token, axis=1)
            candidates = candidates._replace(ranking=candidates.ranking + added)
        ends = ops.equal(candidates.token, step.tokens.end_id)  # (B, C)
        new = self._add_ended(state, candidates, ends, step)
        new, parents = self._choose_live(new, candidates, ends, step.index)
        return new._replace(finished=self._find_finished(new, step)), parents

    def _candidates(self, state: BeamState, step: Step) -> Candidates:
        """Finds enough of the best continuations that W of them do not end."""
        batch_size, _, vocabulary_size = step.log_probs.shape
        ranking = state.ranking[..., None] + step.choice_log_probs  # (B, W, V)
        # At most (1 + len(stop_ids)) W continuations end, so W more are enough.
        count = min(2 + len(self.stop_ids), vocabulary_size) * self.width
        ranking, indices = best_of_all(ranking, count)  # (B, C)
        # If all continuations are forbidden, the best beam ends.
        is_stuck = ops.logical_not(is_allowed(ranking[:, :1]))
        must_end = ops.logical_and(is_stuck, ops.arange(count, dtype="int32") == 0)
        end_id = step.tokens.end_id
        last = state.ranking[:, :1] + step.log_probs[:, 0, end_id, None]
        ranking = ops.where(must_end, last, ranking)
        indices = ops.where(must_end, end_id, indices)
        parents, token = indices // vocabulary_size, indices % vocabulary_size
        added = gather(ops.reshape(step.log_probs, (batch_size, -1)), indices)
        return Candidates(
            ranking=ranking,
            log_probs=gather(state.log_probs, parents) + added,
            parents=parents,
            token=self.replace_stop_ids(token, step.tokens, state.prefix, step.index),
        )

    def _add_ended(
        self, state: BeamState, candidates: Candidates, ends: Tensor, step: Step
    ) -> BeamState:
        """Merges those of the first W candidates that end into the hypotheses.

        At the length limit all of them end. `ends` `(B, C)` marks the end token.
        """
        index = step.index
        first = keras.tree.map_structure(lambda x: x[:, : self.width], candidates)
        at_limit = ops.reshape(index + 1 >= state.limits, (-1, 1))
        ends = ops.logical_or(ends[:, : self.width], at_limit)
        is_new = ops.logical_and(ends, is_allowed(first.ranking))
        penalty = self._penalty_of_unforced(index + 1, step.forced)
        ranking, scores = first.ranking / penalty, first.log_probs / penalty
        if step.coverage is not None:
            covered = self.coverage_penalty * gather(step.coverage, first.parents)
            ranking, scores = ranking + covered, scores + covered
        ranking = ops.where(is_new, ranking, FORBIDDEN)
        token_ids = gather(state.token_ids, first.parents)
        token_ids = write_token(token_ids, first.token, index)
        ranking = ops.concatenate([state.ended_ranking, ranking], axis=1)
        scores = ops.concatenate([state.ended_scores, scores], axis=1)
        token_ids = ops.concatenate([state.ended_ids, token_ids], axis=1)
        # Equal values keep their order, so that an empty place, with its score of -inf,
        # stays before a candidate that does not count.
        ranking, best = largest(ranking, self.num_hypotheses)
        num_new = ops.sum(ops.cast(is_new, "int32"), axis=1, keepdims=True)
        return state._replace(
            num_ended=state.num_ended + num_new,
            ended_ids=gather(token_ids, best),
            ended_ranking=ranking,
            ended_scores=gather(scores, best),
        )

    def _choose_live(
        self, state: BeamState, candidates: Candidates, ends: Tensor, index: Tensor
    ) -> tuple[BeamState, Tensor]:
        """Makes live beams of the first W candidates that do not end.

        Returns the new state, and the beams that these continue, their parents.
        """
        # By place, not by ranking: where tokens are avoided, the two orders differ.
        places = ops.arange(ends.shape[1], dtype="float32")
        _, chosen = largest(ops.where(ends, NO_CANDIDATE, -places), self.width)
        # If fewer than W do not end, some that end are chosen too, but are not live.
        ranking = ops.where(ends, NO_CANDIDATE, candidates.ranking)
        candidates = candidates._replace(ranking=ranking)
        live = keras.tree.map_structure(lambda x: gather(x, chosen), candidates)
        token_ids = gather(state.token_ids, live.parents)
        state = state._replace(
            token=live.token,
            token_ids=write_token(token_ids, live.token, index),
            # Clamped, so that forbidden beams stay at `FORBIDDEN` and do not sum up.
            ranking=ops.maximum(live.ranking, FORBIDDEN),
            log_probs=live.log_probs,
            progress=live.progress,
        )
        return state, live.parents

    def _find_finished(self, state: BeamState, step: Step) -> Tensor:
        """Marks the sentences whose search is over.

        They have reached their length limit or `patience`, have no live beam, or none
        that can still become better than the N-th hypothesis. With a width of 1, one
        hypothesis ends the search.
        """
        worst = state.ended_ranking[:, -1]
        is_live = ops.any(is_allowed(state.ranking), axis=1)
        at_limit = step.index + 1 >= state.limits
        over = ops.logical_or(at_limit, ops.logical_not(is_live))
        if self.patience is not None:
            enough = min(math.ceil(self.patience * self.width), MOST_INTEGER)
            over = ops.logical_or(over, state.num_ended[:, 0] >= enough)
        if self.width == 1:
            return ops.logical_or(over, is_allowed(worst))
        # A beam's log-probability can only fall, and coverage is at most 0. So the
        # log-probability over the penalty of the longest output bounds its score.
        penalty = self._penalty_of_unforced(state.limits, step.forced)[:, 0]
        possible = ops.max(state.ranking, axis=1)
        most = max((bias for _, bias in self.biased_ids), default=0.0)
        if most > 0:
            # Biases may raise it by this much per step. If it can get above 0, the
            # penalty of the shortest output gives the bound.
            left = ops.cast(state.limits - step.index - 1, "float32")
            possible += most * left
            shortest = self._penalty_of_unforced(step.index + 2, step.forced)[:, 0]
            penalty = ops.where(possible > 0, shortest, penalty)
        return ops.logical_or(over, worst >= possible / penalty)

    def _penalty_of_unforced(self, length: Tensor, forced: Tensor) -> Tensor:
        """Computes the penalty `(B, 1)` of a length without its forced tokens."""
        length = ops.cast(ops.reshape(length, (-1, 1)), "float32") - forced
        # At least 1, since a length of 0 would have a penalty of 0.
        return self.penalty_of(ops.maximum(length, 1.0))

    def penalty_of(self, length: Tensor) -> Tensor:
        """Computes the length penalty, by which a log-probability is divided.

        Args:
            length: Float tensor or array of lengths, the end token included.

        Returns:
            A tensor or array of the penalties, of the same shape.
        """
        if not hasattr(length, "shape"):
            length = np.asarray(arguments.tensor("length", length), "float32")
        base = length if self.penalty == "length" else (5.0 + length) / 6.0
        return base**self.length_penalty

    def results(self, state: BeamState) -> tuple[Any, Any]:
        """Returns the hypotheses, best first.

        Args:
            state: The state at the end, of NumPy arrays or, in a graph, of tensors.

        Returns:
            Token ids `(B, N, L)`, ends included, and scores `(B, N)`.
        """
        if self.num_groups == 1:
            # `_add_ended` has kept them in this order.
            return state.ended_ids, state.ended_scores
        return best_first(
            state.ended_ranking,
            state.ended_ids,
            state.ended_scores,
            self.num_hypotheses,
        )


def with_beams(search: Search) -> Search:
    """Returns a search; a `Greedy` becomes a `BeamSearch` with the same options."""
    if type(search) is not Greedy:
        return search
    options = search.get_config()
    options.pop("scored")  # A beam search always is.
    return BeamSearch(**options)


def with_hypotheses(search: Search, count: int) -> Search:
    """Returns a search that finds `count` hypotheses per sentence, or itself for 1.

    A beam search gets at least as many beams. A `Greedy` becomes a beam search with at
    least 4.
    """
    if count == 1:
        return search
    search = with_beams(search)
    if isinstance(search, BeamSearch):
        groups = search.num_groups
        width = max(search.width, -(-count // groups) * groups)
        search = dataclasses.replace(search, width=width)
    return dataclasses.replace(search, num_hypotheses=count)
