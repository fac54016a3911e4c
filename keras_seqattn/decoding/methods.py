"""Search methods, which choose tokens and beams: what all of them share, and `Greedy`.

A method is a frozen configuration. `begin` makes the state before the first step,
`advance` takes one step from the model's log-probabilities, and `results` returns the
hypotheses at the end. The state is a NamedTuple whose tensors all have the sentence as
their first axis, so that sentences can be taken out of a running search. `index` is the
position in the sentence: the number of tokens that it has already. The `index` of a
model's `step` is the loop's, which differs if sentences begin late.
Shapes: B sentences, W beams, V vocabulary, L capacity in generated tokens, P prefix
length, N hypotheses.
"""

import collections.abc
import dataclasses
from typing import Any, NamedTuple, Self

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor
from keras_seqattn.decoding import processors
from keras_seqattn.decoding.hypotheses import SpecialTokens, best_first

# The largest integer of an int32 tensor, which ids and positions are compared with.
MOST_INTEGER = 2**31 - 1
# 2**32 over the golden ratio, so that neighbouring numbers get distant seeds.
SEED_STEP = 0x9E3779B1


class GreedyState(NamedTuple):
    """The state of greedy search and of sampling: each beam continues only itself."""

    limits: Tensor  # int32 (B,): most tokens; 0 in rows that only fill the batch
    prefix: Tensor  # int32 (B, P): forced first tokens, padded; P is 0 without any
    finished: Tensor  # bool (B,): nothing of the sentence changes any more
    token: Tensor  # int32 (B, W): each beam's last token, which the next step reads
    token_ids: Tensor  # int32 (B, W, L): each beam's tokens so far, padded
    ended: Tensor  # bool (B, W): beams that have generated the end token
    scores: Tensor  # float32 (B, W): sums of log-probabilities; NaN if not scored
    seeds: Tensor  # int32 (B, W): per-sequence seeds of random numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """The options that all searches share, by keyword; `Greedy` describes them."""

    min_length: int = 0
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    banned_ids: tuple[int, ...] = ()
    biased_ids: dict[int, float] | tuple[tuple[int, float], ...] = ()
    stop_ids: tuple[int, ...] = ()

    # Subclasses may override these with fields or properties.
    num_hypotheses = 1
    # Whether the state must sum the attention that the source gets.
    needs_coverage = False
    # Whether each step must compute log-probabilities, or logits are enough.
    needs_log_probs = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuses an argument that the search does not know."""
        names = [field.name for field in dataclasses.fields(cls)]
        arguments.known(kwargs, names, cls.__name__)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Checks the arguments."""
        for name in ("banned_ids", "stop_ids"):
            object.__setattr__(self, name, _ids(name, getattr(self, name)))
        object.__setattr__(self, "biased_ids", _biases(self.biased_ids))
        for name in ("min_length", "no_repeat_ngram"):
            arguments.integer(name, getattr(self, name), 0, MOST_INTEGER)
        arguments.number("repetition_penalty", self.repetition_penalty, above=0.0)

    @property
    def width(self) -> int:
        """Number of beams W per sentence."""
        return self.num_hypotheses

    def draw_seed(self) -> int:
        """Returns the seed of one search: an integer that only `Sample` uses."""
        return 0

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes the search from its constructor's arguments."""
        return cls(**config)

    def _check_ids(self, vocabulary_size, end_id):
        """Refuses an id that no token of the model's vocabulary has."""
        if not 0 <= end_id < vocabulary_size:
            wanted = f"in [0, {vocabulary_size}), the model's vocabulary"
            arguments.refuse("end_id", end_id, wanted)
        biased = [token_id for token_id, _ in self.biased_ids]
        ids = {"banned_ids": self.banned_ids, "biased_ids": biased}
        ids["stop_ids"] = self.stop_ids
        wanted = f"below {vocabulary_size}, the size of the model's vocabulary"
        for name, given in ids.items():
            if given and max(given) >= vocabulary_size:
                arguments.refuse(name, max(given), wanted)

    def process(
        self,
        log_probs: Tensor,
        token_ids: Tensor,
        index: Tensor,
        tokens: SpecialTokens,
        prefix: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Applies the method's options to log-probabilities `(B, W, V)`.

        They may be logits unless `needs_log_probs`. Returns two tensors: the model's
        own, in which a forced token is certain so that it does not count in scores, and
        those to choose tokens by.
        """
        self._check_ids(log_probs.shape[-1], tokens.end_id)
        model_log_probs = log_probs
        if self.repetition_penalty != 1.0:
            log_probs = processors.penalize_repetition(
                log_probs, token_ids, index, self.repetition_penalty
            )
        if self.biased_ids:
            log_probs = processors.add_biases(log_probs, self.biased_ids)
        never = {tokens.pad_id, tokens.start_id} - {tokens.end_id}
        log_probs = processors.forbid(log_probs, (*sorted(never), *self.banned_ids))
        if self.no_repeat_ngram:
            log_probs = processors.forbid_repeated_ngrams(
                log_probs, token_ids, index, self.no_repeat_ngram
            )
        if self.min_length:
            without_end = processors.forbid(log_probs, (tokens.end_id, *self.stop_ids))
            early = ops.reshape(index, (-1, 1, 1)) < self.min_length
            log_probs = ops.where(early, without_end, log_probs)
        if prefix.shape[1]:
            model_log_probs, log_probs = (
                processors.force(x, prefix, index, tokens.pad_id)
                for x in (model_log_probs, log_probs)
            )
        return model_log_probs, log_probs

    def replace_stop_ids(
        self, token: Tensor, tokens: SpecialTokens, prefix: Tensor, index: Tensor
    ) -> Tensor:
        """Replaces stop tokens by the end token.

        Stop tokens of a forced prefix stay: they do not end a hypothesis.

        Args:
            token: Int32 tensor `(B, ...)`, tokens at position `index`.
            tokens: The `SpecialTokens`.
            prefix: Int32 tensor `(B, P)` of forced first tokens, padded.
            index: The position, a scalar, or `(B,)` where each sentence has its own.

        Returns:
            Int32 tensor like `token`.
        """
        if not self.stop_ids:
            return token
        stops = processors.is_one_of(token, self.stop_ids)
        if prefix.shape[1]:
            forced = processors.count_forced(prefix, tokens.pad_id)
            ones = [1] * (len(token.shape) - 1)
            is_free = ops.reshape(index, (-1,)) >= forced
            stops = ops.logical_and(stops, ops.reshape(is_free, (-1, *ones)))
        return ops.where(stops, tokens.end_id, token)


@keras.saving.register_keras_serializable(package="keras_seqattn")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Greedy(Search):
    """Takes the most probable token at each step.

    Args:
        min_length: Number of tokens before the end token may come, at least 0.
        repetition_penalty: Positive number by which the log-probability of tokens
            already generated is multiplied; 1 for no penalty.
        no_repeat_ngram: Length of the token sequences that no hypothesis may contain
            twice; 0 for no limit.
        banned_ids: Token ids that are never generated.
        biased_ids: Dict of token ids to the number of nats, in [-1e5, 1e5], added to
            their log-probabilities when a token is chosen; scores stay the model's own.
        stop_ids: Token ids that end a hypothesis as the end token does.
        scored: Whether to compute scores. If False, they are NaN, and each step saves a
            pass over the vocabulary.

    Raises:
        ValueError: If an argument is out of its range, or, once it searches, if a token
            id is not in the model's vocabulary.

    Example:
        >>> Greedy(min_length=3).get_config()["min_length"]
        3
    """

    scored: bool = True

    def __post_init__(self) -> None:
        """Checks the arguments."""
        super().__post_init__()
        arguments.boolean("scored", self.scored)

    @property
    def needs_log_probs(self) -> bool:
        """Whether each step must compute log-probabilities, or logits are enough."""
        return self.scored or self.repetition_penalty != 1.0

    def begin(
        self,
        limits: Tensor,
        seeds: Tensor,
        prefix: Tensor,
        capacity: int,
        tokens: SpecialTokens,
    ) -> GreedyState:
        """Makes the state before the first step.

        Args:
            limits: Int32 tensor `(B,)`, the largest number of tokens of each sentence,
                at most L; 0 for a sentence that only fills the batch.
            seeds: Int32 tensor `(B,)` of per-sequence seeds.
            prefix: Int32 tensor `(B, P)` of forced first tokens, padded.
            capacity: Number L of generated tokens that there is memory for.
            tokens: The `SpecialTokens`.
        """
        shape = (limits.shape[0], self.width)
        return GreedyState(
            limits=limits,
            prefix=prefix,
            finished=limits <= 0,
            token=ops.full(shape, tokens.start_id, "int32"),
            token_ids=ops.full((*shape, capacity), tokens.pad_id, "int32"),
            ended=ops.zeros(shape, "bool"),
            scores=ops.full(shape, 0.0 if self.scored else np.nan, "float32"),
            seeds=processors.beam_seeds(seeds, self.width),
        )

    def advance(
        self,
        state: GreedyState,
        log_probs: Tensor,
        index: Tensor,
        tokens: SpecialTokens,
        coverage: Tensor | None = None,
    ) -> tuple[GreedyState, Tensor | None]:
        """Takes one step.

        Args:
            state: The state before.
            log_probs: Float32 tensor `(B, W, V)`, the model's own; logits unless
                `needs_log_probs`.
            index: The position, a scalar int32 tensor, or `(B,)` where each sentence
                has its own.
            tokens: The `SpecialTokens`.
            coverage: Unused here.

        Returns:
            The new state, and the beams `(B, W)` that the new beams continue, or None
            where each beam continues itself.
        """
        log_probs, choice_log_probs = self.process(
            log_probs, state.token_ids, index, tokens, state.prefix
        )
        best, token = self.choose(choice_log_probs, state, index)
        # If all tokens are forbidden, the beam ends.
        token = ops.where(processors.is_allowed(best), token, tokens.end_id)
        frozen = ops.logical_or(state.ended, state.finished[:, None])
        scores = state.scores
        if self.scored:
            scores = scores + ops.where(frozen, 0.0, gather_log_probs(log_probs, token))
        token = self.replace_stop_ids(token, tokens, state.prefix, index)
        token = ops.where(frozen, tokens.pad_id, token)
        ended = ops.logical_or(frozen, token == tokens.end_id)
        at_limit = index + 1 >= state.limits
        state = state._replace(
            finished=ops.logical_or(at_limit, ops.all(ended, axis=1)),
            token=token,
            token_ids=write_token(state.token_ids, token, index),
            ended=ended,
            scores=scores,
        )
        return state, None

    def choose(
        self, log_probs: Tensor, state: GreedyState, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Chooses each beam's token; returns values and int32 tokens, both `(B, W)`."""
        best, token = processors.best_of_each(log_probs, 1)
        return best[..., 0], token[..., 0]

    def results(self, state: GreedyState) -> tuple[Any, Any]:
        """Returns the hypotheses, best first.

        Args:
            state: The state at the end, of NumPy arrays or, in a graph, of tensors.

        Returns:
            Token ids `(B, N, L)`, ends included, and scores `(B, N)`.
        """
        scores = state.scores
        return best_first(scores, state.token_ids, scores, self.num_hypotheses)


def _ids(name: str, ids: Any) -> tuple[int, ...]:
    """Returns token ids as a tuple; a configuration read from JSON has a list."""
    if isinstance(ids, str | bytes) or not isinstance(ids, collections.abc.Iterable):
        arguments.refuse(name, ids, "a tuple of integers")
    return tuple(_id(name, x, f"[{i}]={x!r}") for i, x in enumerate(ids))


def _id(name, token_id, shown):
    """Returns a token id as an `int`; an error shows `name`'s part as `shown`."""
    try:
        return arguments.integer(name, token_id, 0, MOST_INTEGER)
    except ValueError:
        raise ValueError(
            f"`{name}` must hold integers in [0, {MOST_INTEGER}]. "
            f"Received: {name}{shown}."
        ) from None


def _biases(biases: Any) -> tuple[tuple[int, float], ...]:
    """Returns biases as a tuple of pairs, which is hashable, with each id once."""
    wanted = "a dict of token ids to numbers"
    pairs = tuple(biases.items()) if isinstance(biases, dict) else biases
    if not isinstance(pairs, list | tuple):
        arguments.refuse("biased_ids", biases, wanted)
    try:
        found = [(token_id, bias) for token_id, bias in pairs]
    except (TypeError, ValueError):
        arguments.refuse("biased_ids", biases, wanted)
    found = {_id("biased_ids", x, f"[{x!r}]={bias!r}"): bias for x, bias in found}
    most = processors.MOST_ADDED
    for token_id, bias in found.items():
        arguments.number(f"biased_ids[{token_id}]", bias, least=-most, most=most)
    return tuple(sorted((token_id, float(bias)) for token_id, bias in found.items()))


def checked_search(name: str, search: Search | None) -> Search:
    """Returns a search if it is one; `Greedy()` for None."""
    wanted = "a `Greedy`, `Sample` or `BeamSearch`,"  # "or None" follows
    arguments.instance(name, search, Search, wanted, optional=True)
    return search or Greedy()


def without_scores(search: Search | None) -> Search:
    """Returns a search that finds the same hypotheses, unscored if it is a `Greedy`.

    This saves 6% of the time of a file (benchmarks/results/2026-11-23.md). The row
    "unscored" of `benchmarks.paths` measures a batch.

    Example:
        >>> without_scores(Greedy(min_length=3)) == Greedy(min_length=3, scored=False)
        True
    """
    search = checked_search("search", search)
    # A `Sample` needs its scores to order the hypotheses.
    greedy = type(search) is Greedy
    return dataclasses.replace(search, scored=False) if greedy else search


def without_seed(search: Search) -> Search:
    """Returns a search without its seed, which programs get as data instead."""
    return dataclasses.replace(search, seed=None) if hasattr(search, "seed") else search


def sequence_seeds(numbers: np.ndarray, search: Search) -> np.ndarray:
    """Derives int32 seeds `(B,)` from the numbers of the sentences among all searched.

    So a sample does not depend on the sentences searched beside it.
    """
    return (numbers.astype("int64") * SEED_STEP + search.draw_seed()).astype("int32")


def write_token(token_ids: Tensor, token: Tensor, index: Tensor) -> Tensor:
    """Writes tokens `(B, W)` at `index`, a scalar or `(B,)`, into ids `(B, W, L)`."""
    here = ops.arange(token_ids.shape[-1], dtype="int32") == ops.reshape(
        index, (-1, 1, 1)
    )
    return ops.where(here, token[..., None], token_ids)


def gather_log_probs(log_probs: Tensor, token: Tensor) -> Tensor:
    """Gathers the log-probability of each beam's token, `(B, W, V)` to `(B, W)`."""
    rows = ops.reshape(log_probs, (-1, log_probs.shape[-1]))
    chosen = processors.gather(rows, ops.reshape(token, (-1, 1)))
    return ops.reshape(chosen, token.shape)
