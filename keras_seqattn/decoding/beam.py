"""`BeamSearch`: the likeliest sequences among those whose beginnings are likely.

Shapes: B sentences, W beams, V vocabulary, L room for generated tokens, N hypotheses.
"""

import dataclasses
import math

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.decoding.methods import (
    Search,
    written,
)
from keras_seqattn.decoding.processors import FORBIDDEN
from keras_seqattn.decoding.ranking import best_of_all, gathered, largest

PENALTIES = ("length", "gnmt")


@keras.saving.register_keras_serializable(package="keras_seqattn")
@dataclasses.dataclass(frozen=True)
class BeamSearch(Search):
    """Keeps the best beginnings of each sentence, and the best that have ended.

    Each step goes on from W live beginnings to the 2 W best of all continuations. Of
    the first W of them, those that end are hypotheses; the best W that do not end are
    the live ones of the next step. So no hypothesis ends a search by itself: it ends
    where no live beginning can still become better than the N-th hypothesis, however it
    goes on; with `patience` p also after p W hypotheses, which takes fewer steps but
    may miss the best. What is live at the length limit stands behind all that ended.

    score = log-probability / penalty(length) + coverage, where the length counts the
    end token, penalty(n) is n^a ("length") or ((5 + n) / 6)^a ("gnmt"), and coverage is
    b * sum over the source of log(min(attention received, 1)), with the mean attention
    of all layers and heads. With a repetition penalty hypotheses are ranked by the
    penalized log-probabilities; the scores given are of the model's own.

    With a width of 1 this is greedy search: its one beam ends the search when it ends.

    Args:
        width: Number of live beginnings W a sentence.
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

    def __post_init__(self):
        """Checks the arguments."""
        super().__post_init__()
        arguments.positive_integer("width", self.width)
        arguments.positive_integer("num_hypotheses", self.num_hypotheses)
        for name in ("length_penalty", "coverage_penalty"):
            value = getattr(self, name)
            if value != 0:
                arguments.number(name, value, above=0.0)
        if self.patience is not None:
            arguments.number("patience", self.patience, above=0.0)
        if self.penalty not in PENALTIES:
            raise ValueError(
                f"`penalty` must be one of {PENALTIES}. "
                f"Received: penalty={self.penalty!r}."
            )
        if self.num_hypotheses > self.width:
            raise ValueError(
                f"`num_hypotheses` must be at most `width`, {self.width}. "
                f"Received: num_hypotheses={self.num_hypotheses!r}."
            )

    @property
    def needs_coverage(self):
        """Whether the state is to sum the attention that the source gets."""
        return self.coverage_penalty > 0.0

    def begin(self, limits, streams, room, tokens):
        """Makes what is found before the first step: one live beginning, no more."""
        batch_size, width, kept = limits.shape[0], self.width, self.num_hypotheses
        first = ops.where(ops.arange(width) == 0, 0.0, FORBIDDEN)
        rank = ops.broadcast_to(ops.cast(first, "float32"), (batch_size, width))
        pad = tokens.pad_id
        return {
            "limit": limits,
            "finished": limits <= 0,
            "token": ops.full((batch_size, width), tokens.start_id, "int32"),
            "token_ids": ops.full((batch_size, width, room), pad, "int32"),
            # Sums of log-probabilities: those ranked by, and the model's own.
            "rank": rank,
            "log_prob": rank,
            "num_ended": ops.zeros((batch_size,), "int32"),
            "ended_ids": ops.full((batch_size, kept, room), pad, "int32"),
            "ended_rank": ops.full((batch_size, kept), FORBIDDEN, "float32"),
            "ended_scores": ops.full((batch_size, kept), FORBIDDEN, "float32"),
            "coverage": ops.zeros((batch_size, width), "float32"),
        }

    def advance(self, found, log_probs, index, tokens, prefix=None, coverage=None):
        """Takes one step.

        Args:
            found: What `begin` or the step before gave.
            log_probs: Float32 tensor `(B, W, V)`, the model's own.
            index: The position, a scalar int32 tensor, or `(B,)` of each sentence's
                own.
            tokens: The `SpecialTokens`.
            prefix: Int32 tensor `(B, P)` of forced tokens, or None.
            coverage: Float32 tensor `(B, W)`, the sum of log(min(attention received,
                1)) of each beam, or None.

        Returns:
            What is found now, and the beams `(B, W)` that the new ones go on from.
        """
        candidates = self._candidates(found, log_probs, index, tokens, prefix)
        if coverage is not None:
            taken = gathered(coverage, candidates["parent"])
            candidates["coverage"] = self.coverage_penalty * taken
        ends = ops.equal(candidates["token"], tokens.end_id)
        now = {**found, **self._hypotheses(found, candidates, ends, index)}
        live = _best_live(candidates, ends, self.width)
        parents = live.pop("parent")
        now.update(live)
        so_far = gathered(found["token_ids"], parents)
        now["token_ids"] = written(so_far, live["token"], index)
        now["finished"] = self._finished(now, index)
        frozen = found["finished"]
        kept = {name: _where_rows(frozen, found[name], now[name]) for name in found}
        return kept, parents

    def _candidates(self, found, log_probs, index, tokens, prefix):
        """Gives the 2 W best continuations, best first, as tensors `(B, 2 W)`."""
        vocabulary_size = log_probs.shape[-1]
        allowed = self.processed(log_probs, found["token_ids"], index, tokens, prefix)
        rank = found["rank"][..., None] + allowed  # (B, W, V)
        count = min(2 * self.width, vocabulary_size * self.width)
        rank, place = best_of_all(rank, count)
        parent, token = place // vocabulary_size, place % vocabulary_size
        own = gathered(ops.reshape(log_probs, (log_probs.shape[0], -1)), place)
        return {
            "rank": rank,
            "log_prob": gathered(found["log_prob"], parent) + own,
            "parent": parent,
            "token": token,
            "coverage": ops.zeros_like(rank),
        }

    def _hypotheses(self, found, candidates, ends, index):
        """Merges the candidates that end among the first W into the hypotheses."""
        ends = ends[:, : self.width]
        length = ops.reshape(index + 1, (-1, 1))
        penalty = self.penalty_of(ops.cast(length, "float32"))

        def scores(log_prob):
            score = candidates[log_prob] / penalty + candidates["coverage"]
            return score[:, : self.width]

        possible = candidates["rank"][:, : self.width] > FORBIDDEN / 2
        new = ops.logical_and(ends, possible)
        rank = ops.where(new, scores("rank"), FORBIDDEN)
        token_ids = gathered(found["token_ids"], candidates["parent"][:, : self.width])
        token_ids = written(token_ids, candidates["token"][:, : self.width], index)
        rank = ops.concatenate([found["ended_rank"], rank], axis=1)
        own = ops.concatenate([found["ended_scores"], scores("log_prob")], axis=1)
        token_ids = ops.concatenate([found["ended_ids"], token_ids], axis=1)
        rank, best = largest(rank, self.num_hypotheses)
        num_new = ops.sum(ops.cast(new, "int32"), axis=1)
        return {
            "num_ended": found["num_ended"] + num_new,
            "ended_rank": rank,
            "ended_scores": gathered(own, best),
            "ended_ids": gathered(token_ids, best),
        }

    def _finished(self, found, index):
        """Says where no live beginning can still become one of the hypotheses."""
        worst = found["ended_rank"][:, -1]
        over = index + 1 >= found["limit"]
        if self.patience is not None:
            enough = math.ceil(self.patience * self.width)
            over = ops.logical_or(over, found["num_ended"] >= enough)
        if self.width == 1:
            return ops.logical_or(over, worst > FORBIDDEN / 2)
        # Log-probabilities only fall: the longest is divided by the most.
        longest = self.penalty_of(ops.cast(found["limit"], "float32"))
        possible = ops.max(found["rank"], axis=1) / longest
        return ops.logical_or(over, worst >= possible)

    def penalty_of(self, length):
        """Gives what the log-probability of a number of tokens is divided by.

        Args:
            length: Float tensor or array of lengths, the end token included.

        Returns:
            The same, of penalties.
        """
        base = length if self.penalty == "length" else (5.0 + length) / 6.0
        return base**self.length_penalty

    def results(self, found, tokens):
        """Orders what was found: what ended, then what the length limit cut.

        Args:
            found: The dict, as NumPy arrays.
            tokens: The `SpecialTokens`.

        Returns:
            Token ids `(B, N, L)`, ends included, and scores `(B, N)`.
        """
        limit = np.maximum(found["limit"], 1)[:, None].astype("float32")
        penalty = self.penalty_of(limit)
        cut = {
            name: found[name] / penalty + found["coverage"]
            for name in ("rank", "log_prob")
        }
        order = np.argsort(-cut["rank"], axis=1, kind="stable")
        cut = {name: np.take_along_axis(cut[name], order, 1) for name in cut}
        cut_ids = np.take_along_axis(found["token_ids"], order[..., None], axis=1)
        scores = np.concatenate([found["ended_scores"], cut["log_prob"]], axis=1)
        token_ids = np.concatenate([found["ended_ids"], cut_ids], axis=1)
        rank = np.concatenate([found["ended_rank"], cut["rank"]], axis=1)
        missing = rank <= FORBIDDEN / 2 / penalty
        kept = np.argsort(missing, axis=1, kind="stable")[:, : self.num_hypotheses]
        scores = np.where(missing, -np.inf, scores)
        token_ids = np.where(missing[..., None], tokens.pad_id, token_ids)
        return (
            np.take_along_axis(token_ids, kept[..., None], axis=1),
            np.take_along_axis(scores, kept, axis=1),
        )


def _best_live(candidates, ends, width):
    """Picks the best W candidates that do not end."""
    rank = ops.where(ends, 2 * FORBIDDEN, candidates["rank"])
    rank, chosen = largest(rank, width)
    live = {name: gathered(candidates[name], chosen) for name in candidates}
    # What was forbidden before stays so, and does not sink without a bottom.
    return {**live, "rank": ops.maximum(rank, FORBIDDEN)}


def _where_rows(rows, x, y):
    """Chooses between whole sentences."""
    return ops.where(ops.reshape(rows, (-1, *[1] * (len(x.shape) - 1))), x, y)
