"""`scored`: the log-probability of given sentences, by teacher forcing.

Shapes: B sentences, S source length, T target length.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor
from keras_seqattn.decoding.ensemble import single_models
from keras_seqattn.decoding.hypotheses import pad_lists
from keras_seqattn.decoding.ids import checked_ids
from keras_seqattn.decoding.protocol import is_language_model
from keras_seqattn.scheduling.programs import compiled
from keras_seqattn.scheduling.static import (
    BATCH_SIZES,
    fill_batch,
    in_batches,
    pad_to_length,
    padded_length,
)

# Most positions at once, counted as sentences times the longer side, and most logits,
# which take 268 MB. A vocabulary of more than 16,384 entries thus gets fewer positions.
POSITIONS, LOGITS = 4096, 2**26


def scored(
    model: Any,
    source_ids: np.ndarray | Sequence[Sequence[int]],
    target_ids: np.ndarray | Sequence[Sequence[int]],
) -> np.ndarray:
    """Computes the log-probability of target sentences, in few compiled programs.

    Args:
        model: A model of {"source_ids": (B, S), "target_ids": (B, T)} that computes
            logits, with the attributes `start_id`, `pad_id` and `variables`.
        source_ids: Int array `(B, S)`, padded with `pad_id`, or a list of lists.
        target_ids: Int array `(B, T)`, without the start token, with the end token,
            padded; or a list of lists.

    Returns:
        Float32 array `(B,)`: the sum over the real tokens, in nats.

    Raises:
        ValueError: If `model` is a language model, whose texts `TextGenerator.score`
            scores; or if the ids are not integers of rank 2 with one batch size, or one
            is outside the vocabulary.

    Example:
        >>> import numpy as np
        >>> from keras_seqattn.models import TranslationTransformer
        >>> model = TranslationTransformer(50, model_dim=16, intermediate_dim=32)
        >>> ids = np.array([[5, 7, 2]])
        >>> bool(scored(model, ids, ids)[0] < 0.0)
        True
    """
    wanted = "a translation model"
    needed = ("start_id", "pad_id", "variables")
    arguments.offers("model", model, needed, wanted)
    inputs = getattr(model, "inputs", None)  # of a functional model
    if is_language_model(model) or (inputs is not None and len(inputs) == 1):
        wanted += "; `TextGenerator.score` scores a language model's texts"
        arguments.refuse("model", model, wanted)
    size = getattr(model, "source_vocabulary_size", None)
    source_ids = checked_ids("source_ids", source_ids, size, model.pad_id)
    size = _num_logits(model)
    target_ids = checked_ids("target_ids", target_ids, size, model.pad_id)
    if len(source_ids) != len(target_ids):
        raise ValueError(
            f"`target_ids` must have {len(source_ids)} rows, as many as `source_ids`. "
            f"Received: target_ids.shape={target_ids.shape}."
        )
    return _score(model, (source_ids, target_ids))


def score_lists(
    model: Any,
    *sides: Sequence[Sequence[int]],
    num_forced: int = 0,
    on_batch: Callable[[int], Any] | None = None,
) -> np.ndarray:
    """Returns the log-probability `(B,)`, in nats, of lists of token ids.

    Those of similar length are scored together. `sides` are the sources, only for a
    translation model, and the texts, without the start token and with the end token.
    The first `num_forced` tokens of a text are read but do not count. `on_batch` is
    called with the number of sentences of each batch.
    """
    lengths = [sum(map(len, row)) for row in zip(*sides, strict=True)]
    scores = np.zeros(len(lengths), "float32")
    for rows in in_batches(sorted(range(len(lengths)), key=lengths.__getitem__)):
        arrays = [pad_lists([side[i] for i in rows], model.pad_id) for side in sides]
        scores[rows] = _score(model, arrays, num_forced)
        if on_batch is not None:
            on_batch(len(rows))
    return scores


def _score(
    model: Any, sequences: Sequence[np.ndarray], num_forced: int = 0
) -> np.ndarray:
    """Returns the score of the last of one or two arrays, given the one before."""
    for single in single_models(model):
        if not callable(single):  # The protocol of a search asks for no call.
            wanted = "a model that can be called, to be scored"
            arguments.refuse("model", single, wanted)
    sides = [
        pad_to_length(ids, padded_length(model, ids.shape[1]), model.pad_id)
        for ids in sequences
    ]
    longest = max(side.shape[1] for side in sides)
    size = max(1, min(BATCH_SIZES[-1], _most_positions(model) // longest))
    scores = []
    for batch in zip(*(in_batches(side, size) for side in sides), strict=True):
        run = compiled(model, _log_prob, num_forced, to_numpy=True)
        found = run(*(fill_batch(side, size) for side in batch))
        scores.append(found[: len(batch[0])])
    return np.concatenate(scores)


def _most_positions(model: Any) -> int:
    """Returns how many positions are scored at once."""
    size = _num_logits(model) or getattr(model, "vocabulary_size", 1)
    return min(POSITIONS, LOGITS // size)


def _num_logits(model: Any) -> int | None:
    """Returns how many logits a translation model has; None where it cannot be told."""
    size = getattr(model, "target_vocabulary_size", None)
    shape = getattr(model, "output_shape", None)  # of a functional model
    return shape[-1] if size is None and isinstance(shape, tuple) else size


def _log_prob(model: Any, num_forced: int, *sides: Tensor) -> Tensor:
    """Computes the log-probability `(B,)` of the last of one or two tensors."""
    target_ids = sides[-1]
    start = ops.full_like(target_ids[:, :1], model.start_id)
    read = ops.concatenate([start, target_ids[:, :-1]], axis=1)
    both = {"source_ids": sides[0], "target_ids": read}
    logits = model(both if len(sides) == 2 else read)
    log_probs = ops.log_softmax(ops.cast(logits, "float32"))
    chosen = ops.take_along_axis(log_probs, target_ids[..., None], axis=-1)[..., 0]
    counts = (target_ids != model.pad_id)[:, num_forced:]
    return ops.sum(ops.where(counts, chosen[:, num_forced:], 0.0), axis=-1)
