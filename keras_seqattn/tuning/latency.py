"""How long a model takes to translate one sentence."""

import functools
import math
import statistics
import timeit

import numpy as np

from keras_seqattn import arguments
from keras_seqattn.annotations import DecodingModel
from keras_seqattn.decoding import Greedy, generate
from keras_seqattn.decoding.protocol import (
    is_language_model,
    length_limit,
    max_new_tokens,
)

REPETITIONS = 5


def decode_latency(
    model: DecodingModel, source_length: int = 16, target_length: int = 16
) -> float:
    """Measures the seconds that it takes to translate one sentence greedily.

    Trained or not, the model generates all tokens, so the time depends only on its
    shape. The first call, which compiles, does not count.

    Args:
        model: A model with the decoding protocol.
        source_length: Tokens of the source, its end included.
        target_length: Tokens generated. Both lengths are cut to the model's
            `max_length`.

    Returns:
        The median of five measurements, in seconds.

    Raises:
        ValueError: If `model` lacks the protocol, or a length is not a positive
            integer.

    Example:
        >>> from keras_seqattn.models import TranslationTransformer
        >>> model = TranslationTransformer(50, model_dim=8, num_heads=2,
        ...                                encoder_layers=1, decoder_layers=1)
        >>> decode_latency(model, target_length=2) > 0
        True
    """
    wanted = "a model with the decoding protocol"
    arguments.offers("model", model, ("encode", "step", "end_id"), wanted)
    arguments.positive_integer("source_length", source_length)
    arguments.positive_integer("target_length", target_length)
    longest = length_limit(model) or math.inf
    # A language model's limit is one of prompt and continuation together.
    source_length = min(source_length, longest - is_language_model(model))
    most = max_new_tokens(model, source_length)
    target_length = min(target_length, math.inf if most is None else most)
    ids = np.full((1, source_length), model.end_id, "int32")
    search = Greedy(min_length=target_length)
    translate = functools.partial(
        generate, model, ids, search, max_length=target_length
    )
    translate()
    return statistics.median(timeit.repeat(translate, number=1, repeat=REPETITIONS))
