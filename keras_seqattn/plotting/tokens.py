"""What every picture of attention is made of: weights, and readable tokens to match."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import keras
import numpy as np

from keras_seqattn import arguments
from keras_seqattn.annotations import ArrayLike, Lines

if TYPE_CHECKING:
    from keras_seqattn.sentence_attention import AttentionWeights


def panels_of(
    weights: "AttentionWeights | ArrayLike",
    source_tokens: Lines | None,
    target_tokens: Lines | None,
) -> tuple[np.ndarray, Lines, Lines]:
    """Checks attention weights against their tokens, and returns both.

    The weights are an array `(T, S)`, `(heads, T, S)` or `(layers, heads, T, S)`, or
    what `Translator.attention` returns, which has its tokens. The result is float32
    weights `(layers, heads, T, S)`, the source tokens and the target tokens.
    """
    if hasattr(weights, "source_tokens"):
        source_tokens, target_tokens = weights.source_tokens, weights.target_tokens
        weights = weights.weights
    else:
        wanted = "a list of strings"
        arguments.tensor("weights", weights)
        source_tokens = arguments.sequence(
            "source_tokens", source_tokens, wanted, arguments.text
        )
        target_tokens = arguments.sequence(
            "target_tokens", target_tokens, wanted, arguments.text
        )
    if keras.ops.is_tensor(weights):
        weights = keras.ops.convert_to_numpy(weights)
    weights = np.asarray(weights, "float32")
    shape = (len(target_tokens or ()), len(source_tokens or ()))
    if weights.ndim not in (2, 3, 4) or weights.shape[-2:] != shape or 0 in shape:
        raise ValueError(
            "`weights` must have the shape (T, S), (heads, T, S) or (layers, heads, "
            f"T, S), with (T, S) = {shape} by `target_tokens` and `source_tokens`. "
            f"Received: weights.shape={weights.shape}."
        )
    # A softmax in 16 bits may round up to 1.004.
    valid = (weights >= 0) & (weights <= 1.01)
    if not valid.all():
        raise ValueError(
            "`weights` must be in [0, 1]. "
            f"Received: a weight of {weights[~valid].flat[0]}."
        )
    weights = weights.reshape((1,) * (4 - weights.ndim) + weights.shape)
    return weights, source_tokens, target_tokens


def readable(tokens: Iterable[str]) -> list[str]:
    r"""Escapes characters that cannot be seen, so that each label shows its token.

    Example:
        >>> readable(["▁dog", "a\n"])
        ['␣dog', 'a\\n']
    """
    return [
        "".join(
            character if character.isprintable() else repr(character)[1:-1]
            for character in token.replace("▁", "␣").replace(" ", "␣")
        )
        for token in tokens
    ]
