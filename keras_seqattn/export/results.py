"""The results of a search inside a graph, where `Search.results` cannot compute them.

Shapes: B sentences, N hypotheses, L room for generated tokens.
"""

from keras import ops

from keras_seqattn.decoding import BeamSearch


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
        return search.results(found, tokens)
    order = ops.argsort(-found["scores"], axis=1)
    return _rows(found["token_ids"], order), _columns(found["scores"], order)


def _columns(x, order):
    return ops.take_along_axis(x, order, axis=1)


def _rows(x, order):
    return ops.take_along_axis(x, order[..., None], axis=1)
