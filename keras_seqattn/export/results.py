"""The results of a search inside a graph, where `Search.results` cannot compute them.

Shapes: B sentences, W beams, N hypotheses, L room for generated tokens.
"""

from keras import ops

from keras_seqattn.decoding import BeamSearch
from keras_seqattn.decoding.processors import FORBIDDEN


def ordered_results(search, found, tokens):
    """Does what `search.results` does, in `keras.ops`.

    Args:
        search: A `Greedy`, `Sample` or `BeamSearch`.
        found: What the search found, a dict of tensors.
        tokens: The `SpecialTokens`.

    Returns:
        Token ids `(B, N, L)`, ends included, and scores `(B, N)`, best first.

    Example:
        >>> from keras_seqattn.decoding import Greedy
        >>> found = {"scores": ops.array([[-1.0]]), "token_ids": ops.array([[[5, 2]]])}
        >>> [int(x) for x in ordered_results(Greedy(), found, None)[0][0, 0]]
        [5, 2]
    """
    if isinstance(search, BeamSearch):
        return _beam_results(search, found, tokens)
    order = ops.argsort(-found["scores"], axis=1)
    return _rows(found["token_ids"], order), _columns(found["scores"], order)


def _beam_results(search, found, tokens):
    """Orders what was found: what ended, then what the length limit cut."""
    length = ops.maximum(ops.cast(found["limit"], "float32"), 1.0)[:, None]
    penalty = search.penalty_of(length)
    rank, score = (
        found[name] / penalty + found["coverage"] for name in ("rank", "log_prob")
    )
    order = ops.argsort(-rank, axis=1)
    scores = ops.concatenate([found["ended_scores"], _columns(score, order)], axis=1)
    rank = ops.concatenate([found["ended_rank"], _columns(rank, order)], axis=1)
    token_ids = ops.concatenate(
        [found["ended_ids"], _rows(found["token_ids"], order)], axis=1
    )
    missing = rank <= FORBIDDEN / 2 / penalty
    # What is missing comes last, the others stay in their order.
    count = missing.shape[1]
    places = ops.cast(missing, "int32") * count + ops.arange(count, dtype="int32")
    kept = ops.argsort(places, axis=1)[:, : search.num_hypotheses]
    scores = ops.where(missing, -float("inf"), scores)
    token_ids = ops.where(missing[..., None], tokens.pad_id, token_ids)
    return _rows(token_ids, kept), _columns(scores, kept)


def _columns(x, order):
    return ops.take_along_axis(x, order, axis=1)


def _rows(x, order):
    return ops.take_along_axis(x, order[..., None], axis=1)
