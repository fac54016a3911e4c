"""Token sequences before and after a search: padded arrays, and hypotheses.

Shapes: B sentences, N hypotheses, L generated length.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments


class Hypotheses(NamedTuple):
    """What a search found, best first: N hypotheses for each of B sentences.

    Attributes:
        token_ids: Int32 array `(B, N, L)` without start and end, nor the stop token
            that ended a hypothesis; padded with 0, whatever the `pad_id` is. L is the
            largest number of tokens that a sentence could get.
        lengths: Int32 array `(B, N)`, the number of those tokens.
        scores: Float32 array `(B, N)`: the log-probability, end token included and
            forced tokens left out. A `BeamSearch` divides it by its length penalty,
            adds coverage if it has a `coverage_penalty`, and gives -inf where fewer
            than N hypotheses exist. NaN if the search is not `scored`.

    Example:
        >>> import numpy as np
        >>> token_ids = np.array([[[5, 7, 0, 0]]], "int32")
        >>> found = Hypotheses(token_ids, np.array([[2]]), np.array([[-1.5]]))
        >>> found.sequence(0)
        [5, 7]
    """

    token_ids: np.ndarray
    lengths: np.ndarray
    scores: np.ndarray

    def sequence(self, sentence: int, rank: int = 0) -> list[int]:
        """Returns one hypothesis without its padding.

        Args:
            sentence: Number of the sentence in [0, B).
            rank: Number of its hypothesis in [0, N), 0 for the best.

        Returns:
            A list of token ids.
        """
        batch_size, count = np.shape(self.token_ids)[:2]
        arguments.integer("sentence", sentence, 0, batch_size - 1)
        arguments.integer("rank", rank, 0, count - 1)
        return self.token_ids[sentence, rank, : self.lengths[sentence, rank]].tolist()

    def ranked(self, sentence: int) -> list[tuple[list[int], float]]:
        """Returns all hypotheses of a sentence that exist, best first.

        Args:
            sentence: Number of the sentence in [0, B).

        Returns:
            A list of pairs: a list of token ids, and the score. If nothing was found,
            one pair: an empty list, and -inf.
        """
        arguments.integer("sentence", sentence, 0, len(self.token_ids) - 1)
        scores = self.scores[sentence].tolist()
        found = [
            (self.sequence(sentence, rank), score)
            for rank, score in enumerate(scores)
            if score != -np.inf
        ]
        return found or [([], -math.inf)]


class SpecialTokens(NamedTuple):
    """The ids of the start token, the end token and padding."""

    start_id: int = 1
    end_id: int = 2
    pad_id: int = 0


def hypotheses(
    token_ids: np.ndarray, scores: np.ndarray, tokens: SpecialTokens
) -> Hypotheses:
    """Makes `Hypotheses` from token ids `(B, N, L)`, each cut before its end token."""
    length = token_ids.shape[-1]
    over = (token_ids == tokens.end_id) | (token_ids == tokens.pad_id)
    lengths = np.where(over.any(-1), over.argmax(-1), length)
    token_ids = np.where(np.arange(length) < lengths[..., None], token_ids, 0)
    return Hypotheses(
        token_ids.astype("int32"), lengths.astype("int32"), scores.astype("float32")
    )


def best_first(
    ranking: Any, token_ids: Any, scores: Any, count: int
) -> tuple[Any, Any]:
    """Returns the `count` best token ids `(B, N, L)` and scores `(B, N)`, best first.

    The order is that of `ranking` `(B, N)`. All three are NumPy arrays or, in a graph,
    all are tensors.

    Example:
        >>> ids, scores = np.array([[[4], [5], [6]]]), np.array([[-3.0, -1.0, -2.0]])
        >>> ids, scores = best_first(scores, ids, scores, count=2)
        >>> ids.tolist(), scores.tolist()
        ([[[5], [6]]], [[-1.0, -2.0]])
    """
    if isinstance(ranking, np.ndarray):
        take, order = np.take_along_axis, np.argsort(-ranking, axis=1, kind="stable")
    else:
        take, order = ops.take_along_axis, ops.argsort(-ranking, axis=1)
    order = order[:, :count]
    return take(token_ids, order[..., None], axis=1), take(scores, order, axis=1)


def pad_lists(lists: Sequence[Any], pad_id: int, dtype: str = "int32") -> np.ndarray:
    """Returns lists of token ids as one padded array, of a length of at least 1."""
    length = max(1, max(map(len, lists)))
    return keras.utils.pad_sequences(lists, length, dtype, "post", value=pad_id)


def next_power(number: int, least: int) -> int:
    """Returns the smallest power of 2 that is not below a number or `least`, a power.

    Lengths are padded to such sizes, so that few programs are compiled.
    """
    return max(least, 1 << max(number - 1, 0).bit_length())
