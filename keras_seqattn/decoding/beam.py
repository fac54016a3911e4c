"""`BeamSearch`: the likeliest sequences among those whose beginnings are likely.

Shapes: B sentences, W beams, V vocabulary, L room for generated tokens, N hypotheses.
"""

import dataclasses
import math

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.decoding.methods import Greedy, Search, written
from keras_seqattn.decoding.processors import FORBIDDEN
from keras_seqattn.decoding.ranking import best_of_all, gathered, largest

PENALTIES = ("length", "gnmt")


@keras.saving.register_keras_serializable(package="keras_seqattn")
@dataclasses.dataclass(frozen=True)
class BeamSearch(Search):
    """Keeps the best beginnings of each sentence, and the best hypotheses.

    Each step goes on from W live beginnings to the 2 W best of all continuations. Of
    the first W of them, those that end are hypotheses; the best W that do not end are
    the live ones of the next step. So no hypothesis ends a search by itself: it ends
    where no live beginning can still become better than the N-th hypothesis, however it
    goes on; with `patience` p also after p W hypotheses, which takes fewer steps but
    may miss the best. A hypothesis still live at `max_length` competes by its score,
    that of the tokens it has, with those that ended before.

    score = log-probability / penalty(length) + coverage, where the length counts the
    end token, penalty(n) is n^a ("length") or ((5 + n) / 6)^a ("gnmt"), and coverage is
    b * sum over the source of log(min(attention received, 1)), with the mean attention
    of all layers and heads. With a repetition penalty hypotheses are ranked by the
    penalized log-probabilities; the scores given are of the model's own. The tokens of
    a forced prefix are certain: neither their log-probability nor their number counts
    in a score, though `max_length` and `min_length` count them.

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

    def __post_init__(self):
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
            "ended_scores": ops.full((batch_size, kept), -math.inf, "float32"),
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
        log_probs, allowed = self.processed(
            log_probs, found["token_ids"], index, tokens, prefix
        )
        candidates = self._candidates(found, log_probs, allowed, tokens)
        if coverage is not None:
            taken = gathered(coverage, candidates["parent"])
            candidates["coverage"] = self.coverage_penalty * taken
        forced = 0.0
        if prefix is not None:
            real = ops.cast(prefix != tokens.pad_id, "float32")
            forced = ops.sum(real, axis=1, keepdims=True)
        ends = ops.equal(candidates["token"], tokens.end_id)
        hypotheses = self._hypotheses(found, candidates, ends, index, forced)
        now = {**found, **hypotheses}
        live = _best_live(candidates, ends, self.width)
        parents = live.pop("parent")
        now.update(live)
        so_far = gathered(found["token_ids"], parents)
        now["token_ids"] = written(so_far, live["token"], index)
        now["finished"] = self._finished(now, index, forced)
        frozen = found["finished"]
        kept = {name: _where_rows(frozen, found[name], now[name]) for name in found}
        return kept, parents

    def _candidates(self, found, log_probs, allowed, tokens):
        """Computes the best continuations, best first, as tensors `(B, C)`."""
        vocabulary_size = log_probs.shape[-1]
        rank = found["rank"][..., None] + allowed  # (B, W, V)
        # As many as may end, and W that do not.
        count = min(2 + len(self.stop_ids), vocabulary_size) * self.width
        rank, place = best_of_all(rank, count)
        parent, token = place // vocabulary_size, place % vocabulary_size
        own = gathered(ops.reshape(log_probs, (log_probs.shape[0], -1)), place)
        return {
            "rank": rank,
            "log_prob": gathered(found["log_prob"], parent) + own,
            "parent": parent,
            "token": self.stopped(token, tokens),
            "coverage": ops.zeros_like(rank),
        }

    def _hypotheses(self, found, candidates, ends, index, forced):
        """Merges what ends, or is cut, of the first W candidates into the hypotheses.

        Args:
            found: What was found before.
            candidates: What `_candidates` gave, C of them.
            ends: Bool tensor `(B, C)`, which of them end.
            index: The position.
            forced: Float tensor `(B, 1)`, the number of forced tokens, or 0.
        """
        first = {name: x[:, : self.width] for name, x in candidates.items()}
        cut = ops.reshape(index + 1 >= found["limit"], (-1, 1))
        ends = ops.logical_or(ends[:, : self.width], cut)
        new = ops.logical_and(ends, first["rank"] > FORBIDDEN / 2)
        penalty = self._penalty_without(forced, index + 1)
        rank, own = (
            first[x] / penalty + first["coverage"] for x in ("rank", "log_prob")
        )
        rank = ops.where(new, rank, FORBIDDEN)
        token_ids = gathered(found["token_ids"], first["parent"])
        token_ids = written(token_ids, first["token"], index)
        rank = ops.concatenate([found["ended_rank"], rank], axis=1)
        own = ops.concatenate([found["ended_scores"], own], axis=1)
        token_ids = ops.concatenate([found["ended_ids"], token_ids], axis=1)
        # Of equal ranks the first are taken: what is missing stays so.
        rank, best = largest(rank, self.num_hypotheses)
        num_new = ops.sum(ops.cast(new, "int32"), axis=1)
        return {
            "num_ended": found["num_ended"] + num_new,
            "ended_rank": rank,
            "ended_scores": gathered(own, best),
            "ended_ids": gathered(token_ids, best),
        }

    def _finished(self, found, index, forced):
        """Computes where no live beginning can still become one of the hypotheses."""
        worst = found["ended_rank"][:, -1]
        over = index + 1 >= found["limit"]
        if self.patience is not None:
            enough = math.ceil(self.patience * self.width)
            over = ops.logical_or(over, found["num_ended"] >= enough)
        if self.width == 1:
            return ops.logical_or(over, worst > FORBIDDEN / 2)
        # Log-probabilities only fall: the longest is divided by the most.
        longest = self._penalty_without(forced, found["limit"])[:, 0]
        possible = ops.max(found["rank"], axis=1) / longest
        return ops.logical_or(over, worst >= possible)

    def _penalty_without(self, forced, length):
        """Computes the penalty `(B, 1)` of a length without its forced tokens."""
        length = ops.cast(ops.reshape(length, (-1, 1)), "float32") - forced
        return self.penalty_of(ops.maximum(length, 1.0))

    def penalty_of(self, length):
        """Gives what the log-probability of a number of tokens is divided by.

        Args:
            length: Float tensor or array of lengths, the end token included.

        Returns:
            The same, of penalties.
        """
        if not hasattr(length, "shape"):
            length = np.asarray(arguments.tensor("length", length), "float32")
        base = length if self.penalty == "length" else (5.0 + length) / 6.0
        return base**self.length_penalty

    def results(self, found, tokens):
        """Returns the hypotheses, which were found best first.

        Args:
            found: The dict.
            tokens: The `SpecialTokens`.

        Returns:
            Token ids `(B, N, L)`, ends included, and scores `(B, N)`.
        """
        return found["ended_ids"], found["ended_scores"]


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


def with_hypotheses(search, count):
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
