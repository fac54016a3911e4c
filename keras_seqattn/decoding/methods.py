"""How a search chooses: `Greedy`, `Sample`, and what every search has.

A search is a configuration with four methods that `loop` calls: `begin` makes what is
found before the first step, `advance` takes one step, `finished` is kept in what is
found, and `results` (NumPy) orders it at the end. What is found is a dict of tensors
whose first axis is the sentence.
Shapes: B sentences, W beams, V vocabulary, L room for generated tokens.
"""

import collections.abc
import dataclasses
import random

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.backend.ops import gather
from keras_seqattn.decoding import processors
from keras_seqattn.decoding.ranking import best_of_all


@dataclasses.dataclass(frozen=True)
class Search:
    """What every search can be told; the arguments are given by keyword.

    Args:
        min_length: Number of tokens before the end token may come.
        repetition_penalty: Factor of the log-probability of what was said already;
            1 for none.
        no_repeat_ngram: Length of the sequences of tokens that no hypothesis may hold
            twice; 0 for none.
        banned_ids: Token ids that are never generated.
        stop_ids: Token ids that end a hypothesis as the end token does.

    Raises:
        ValueError: If an argument is out of its range.
    """

    min_length: int = dataclasses.field(default=0, kw_only=True)
    repetition_penalty: float = dataclasses.field(default=1.0, kw_only=True)
    no_repeat_ngram: int = dataclasses.field(default=0, kw_only=True)
    banned_ids: tuple[int, ...] = dataclasses.field(default=(), kw_only=True)
    stop_ids: tuple[int, ...] = dataclasses.field(default=(), kw_only=True)

    def __new__(cls, *args, **kwargs):
        """Refuses an argument that the search does not know."""
        names = [field.name for field in dataclasses.fields(cls)]
        arguments.known(kwargs, names, cls.__name__)
        return super().__new__(cls)

    def __post_init__(self):
        """Checks the arguments."""
        for name in ("banned_ids", "stop_ids"):
            object.__setattr__(self, name, _ids(name, getattr(self, name)))
        arguments.integer("min_length", self.min_length, 0)
        arguments.boolean("scored", getattr(self, "scored", True))
        arguments.integer("no_repeat_ngram", self.no_repeat_ngram, 0)
        arguments.number("repetition_penalty", self.repetition_penalty, above=0.0)

    @property
    def width(self):
        """Number of beams W a sentence."""
        return self.num_hypotheses

    num_hypotheses = 1
    # Whether the state is to sum the attention that the source gets.
    needs_coverage = False
    # Whether each step is to give log-probabilities, or logits will do.
    needs_log_probs = True

    def draw_seed(self):
        """Gives the seed of one search: an integer that only `Sample` uses."""
        return 0

    def get_config(self):
        """Gives the constructor's arguments."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config):
        """Makes the search from its constructor's arguments."""
        return cls(**config)

    def processed(self, log_probs, token_ids, index, tokens, prefix):
        """Applies what the search was told to log-probabilities `(B, W, V)`.

        Args:
            log_probs: Float32 tensor, the model's own; logits unless
                `needs_log_probs`.
            token_ids: Int32 tensor `(B, W, L)` of what each beam has said.
            index: The position, a scalar int32 tensor, or `(B,)` of each sentence's
                own.
            tokens: The `SpecialTokens`.
            prefix: Int32 tensor `(B, P)` or None.

        Returns:
            Two float32 tensors `(B, W, V)`: `log_probs`, where a forced token is
            certain, so that it does not count in scores, and what to choose by.
        """
        own = log_probs
        if self.repetition_penalty != 1.0:
            log_probs = processors.penalize_repetition(
                log_probs, token_ids, self.repetition_penalty
            )
        never = (tokens.pad_id, tokens.start_id, *self.banned_ids)
        log_probs = processors.forbid(log_probs, never)
        if self.no_repeat_ngram:
            log_probs = processors.forbid_repeated_ngrams(
                log_probs, token_ids, index, self.no_repeat_ngram
            )
        if self.min_length:
            ends = (tokens.end_id, *self.stop_ids)
            ended = processors.forbid(log_probs, ends)
            early = ops.reshape(index, (-1, 1, 1)) < self.min_length
            log_probs = ops.where(early, ended, log_probs)
        if prefix is not None:
            own, log_probs = (
                processors.force(x, prefix, index, tokens.pad_id)
                for x in (own, log_probs)
            )
        return own, log_probs

    def stopped(self, token, tokens):
        """Puts the end token in the place of what ends a hypothesis as it does.

        Args:
            token: Int32 tensor of token ids.
            tokens: The `SpecialTokens`.

        Returns:
            Int32 tensor of the same shape.
        """
        for stop_id in self.stop_ids:
            token = ops.where(token == stop_id, tokens.end_id, token)
        return token


@keras.saving.register_keras_serializable(package="keras_seqattn")
@dataclasses.dataclass(frozen=True)
class Greedy(Search):
    """Takes the most probable token at each step.

    Args:
        min_length: Number of tokens before the end token may come.
        repetition_penalty: Factor of the log-probability of what was said already;
            1 for none.
        no_repeat_ngram: Length of the sequences of tokens that no hypothesis may hold
            twice; 0 for none.
        banned_ids: Token ids that are never generated.
        stop_ids: Token ids that end a hypothesis as the end token does.
        scored: Whether to compute scores. Without, they are NaN, and a step saves a
            pass over the vocabulary.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> Greedy(min_length=3).get_config()["min_length"]
        3
    """

    scored: bool = dataclasses.field(default=True, kw_only=True)

    @property
    def needs_log_probs(self):
        """Whether each step is to give log-probabilities, or logits will do."""
        return self.scored or self.repetition_penalty != 1.0

    def begin(self, limits, streams, room, tokens):
        """Makes what is found before the first step.

        Args:
            limits: Int32 tensor `(B,)`, each sentence's most tokens, 0 for a sentence
                that only fills the batch.
            streams: Int32 tensor `(B,)`, a number for each sentence's randomness.
            room: Room for generated tokens L, an integer.
            tokens: The `SpecialTokens`.

        Returns:
            A dict of tensors.
        """
        shape = (limits.shape[0], self.width)
        return {
            "limit": limits,
            "finished": limits <= 0,
            "token": ops.full(shape, tokens.start_id, "int32"),
            "token_ids": ops.full((*shape, room), tokens.pad_id, "int32"),
            "scores": ops.full(shape, 0.0 if self.scored else np.nan, "float32"),
            "ended": ops.zeros(shape, "bool"),
        }

    def advance(self, found, log_probs, index, tokens, prefix=None, coverage=None):
        """Takes one step.

        Args:
            found: What `begin` or the step before gave.
            log_probs: Float32 tensor `(B, W, V)`, the model's own; logits unless
                `needs_log_probs`.
            index: The position, a scalar int32 tensor, or `(B,)` of each sentence's
                own.
            tokens: The `SpecialTokens`.
            prefix: Int32 tensor `(B, P)` of forced tokens, or None.
            coverage: Unused here.

        Returns:
            What is found now, and the beams `(B, W)` that the new ones go on from, or
            None where each goes on from itself.
        """
        log_probs, allowed = self.processed(
            log_probs, found["token_ids"], index, tokens, prefix
        )
        best, token = self.choose(allowed, found, index)
        # Where all is forbidden nothing is left but to end.
        token = ops.where(best > processors.FORBIDDEN / 2, token, tokens.end_id)
        frozen = ops.logical_or(found["ended"], found["finished"][:, None])
        scores = found["scores"]
        if self.scored:
            scores = scores + ops.where(frozen, 0.0, picked(log_probs, token))
        token = ops.where(frozen, tokens.pad_id, self.stopped(token, tokens))
        ended = ops.logical_or(frozen, token == tokens.end_id)
        over = index + 1 >= found["limit"]
        return {
            **found,
            "finished": ops.logical_or(over, ops.all(ended, axis=1)),
            "token": token,
            "token_ids": written(found["token_ids"], token, index),
            "scores": scores,
            "ended": ended,
        }, None

    def choose(self, log_probs, found, index):
        """Chooses each beam's token; gives its value and it, int32 `(B, W)`."""
        batch_size, width, vocabulary_size = ops.shape(log_probs)
        rows = ops.reshape(log_probs, (batch_size * width, 1, vocabulary_size))
        best, token = best_of_all(rows, 1)
        shape = (batch_size, width)
        return ops.reshape(best, shape), ops.reshape(token, shape)

    def results(self, found, tokens):
        """Orders what was found, best first.

        Args:
            found: The dict, as NumPy arrays.
            tokens: The `SpecialTokens`.

        Returns:
            Token ids `(B, N, L)`, ends included, and scores `(B, N)`.
        """
        order = np.argsort(-found["scores"], axis=1, kind="stable")
        token_ids = np.take_along_axis(found["token_ids"], order[..., None], axis=1)
        return token_ids, np.take_along_axis(found["scores"], order, axis=1)


@keras.saving.register_keras_serializable(package="keras_seqattn")
@dataclasses.dataclass(frozen=True)
class Sample(Greedy):
    """Draws each token from the model's probabilities.

    The filters follow one another: temperature, `top_k`, `top_p`, `min_p`, each on what
    the one before left. The same seed gives the same samples on every backend, and a
    sentence's do not depend on those searched beside it.

    Args:
        temperature: Positive number by which logits are divided; below 1 prefers what
            is probable.
        top_k: Number of the most probable tokens that may be drawn, or None.
        top_p: Probability in (0, 1] that the most probable tokens which may be drawn
            reach together, or None.
        min_p: Probability in (0, 1] relative to the most probable token's, below which
            no token is drawn, or None.
        seed: Integer in [0, 2**31); None for another at every search, which
            `keras.utils.set_random_seed` makes repeatable.
        num_hypotheses: Number of samples drawn a sentence.
        min_length: Number of tokens before the end token may come.
        repetition_penalty: Factor of the log-probability of what was said already;
            1 for none.
        no_repeat_ngram: Length of the sequences of tokens that no hypothesis may hold
            twice; 0 for none.
        banned_ids: Token ids that are never generated.
        stop_ids: Token ids that end a hypothesis as the end token does.
        scored: Whether to compute scores, which order the samples of a sentence.
            Without, they are NaN, and a step saves a pass over the vocabulary.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> Sample(temperature=0.7, top_k=10, seed=1).top_k
        10
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    num_hypotheses: int = 1

    def __post_init__(self):
        """Checks the arguments."""
        super().__post_init__()
        arguments.number("temperature", self.temperature, above=0.0)
        if self.top_k is not None:
            arguments.positive_integer("top_k", self.top_k)
        for name in ("top_p", "min_p"):
            if getattr(self, name) is not None:
                arguments.number(name, getattr(self, name), above=0.0, most=1.0)
        if self.seed is not None:
            arguments.integer("seed", self.seed, 0)
        arguments.positive_integer("num_hypotheses", self.num_hypotheses)

    def draw_seed(self):
        """Gives the seed of one search."""
        return random.randrange(2**31) if self.seed is None else self.seed % 2**31

    def begin(self, limits, streams, room, tokens):
        """Makes what is found before the first step, with each beam's stream."""
        beams = ops.arange(self.width, dtype="int32")
        streams = processors.hashed(streams[:, None], beams)
        return {**super().begin(limits, streams, room, tokens), "streams": streams}

    def choose(self, log_probs, found, index):
        """Draws each beam's token; gives its value and it, int32 `(B, W)`."""
        log_probs = ops.log_softmax(log_probs / self.temperature)
        if self.top_k is not None:
            log_probs = processors.keep_top_k(log_probs, self.top_k)
            log_probs = ops.log_softmax(log_probs)
        if self.top_p is not None:
            log_probs = processors.keep_top_p(log_probs, self.top_p)
        if self.min_p is not None:
            log_probs = processors.keep_min_p(log_probs, self.min_p)
        noise = processors.gumbel_noise(found["streams"], index, log_probs.shape[-1])
        return super().choose(log_probs + noise, found, index)


def _ids(name, ids):
    """Returns token ids as a tuple; a configuration that was JSON has a list."""
    if isinstance(ids, str | bytes) or not isinstance(ids, collections.abc.Iterable):
        arguments.refuse(name, ids, "a tuple of integers")
    return tuple(arguments.integer(name, token_id, 0) for token_id in ids)


def checked_search(name, search):
    """Returns a search if it is one.

    Args:
        name: Name of the argument, for the error.
        search: What was given; None: `Greedy()`.

    Returns:
        A `Search`.

    Raises:
        ValueError: If `search` is neither a search nor None.

    Example:
        >>> checked_search("search", "beam")
        Traceback (most recent call last):
        ValueError: `search` must be a `Greedy`, `Sample` or `BeamSearch`, or None. \
Received: search='beam'.
    """
    wanted = "a `Greedy`, `Sample` or `BeamSearch`,"  # "or None" follows
    arguments.instance(name, search, Search, wanted, optional=True)
    return search or Greedy()


def unscored(search):
    """Gives a search that finds the same, without scores where they cost anything.

    Args:
        search: A search; None: `Greedy()`.

    Returns:
        A search.

    Example:
        >>> unscored(Greedy(min_length=3)) == Greedy(min_length=3, scored=False)
        True
    """
    search = checked_search("search", search)
    # A `Sample` orders by its scores.
    greedy = type(search) is Greedy
    return dataclasses.replace(search, scored=False) if greedy else search


def written(token_ids, token, index):
    """Writes a token of each beam.

    Args:
        token_ids: Int32 tensor `(B, W, L)`.
        token: Int32 tensor `(B, W)`.
        index: The position, a scalar int32 tensor, or `(B,)` of each sentence's own.

    Returns:
        Int32 tensor `(B, W, L)`.

    Example:
        >>> token = ops.array([[5]], "int32")
        >>> written(ops.zeros((1, 1, 3), "int32"), token, 1)[0, 0].tolist()
        [0, 5, 0]
    """
    here = ops.arange(token_ids.shape[-1], dtype="int32") == ops.reshape(
        index, (-1, 1, 1)
    )
    return ops.where(here, token[..., None], token_ids)


def picked(log_probs, token):
    """Gives the log-probability of one token of each beam.

    Args:
        log_probs: Float tensor `(B, W, V)`.
        token: Int32 tensor `(B, W)`.

    Returns:
        Float tensor `(B, W)`.

    Example:
        >>> token = ops.array([[1]], "int32")
        >>> float(picked(ops.array([[[1.0, 2.0]]]), token)[0, 0])
        2.0
    """
    batch_size, width, vocabulary_size = ops.shape(log_probs)
    beams = ops.arange(batch_size * width, dtype="int32")
    places = beams * vocabulary_size + ops.reshape(token, (-1,))
    return ops.reshape(
        gather(ops.reshape(log_probs, (-1,)), places), (batch_size, width)
    )
