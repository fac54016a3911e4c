"""Biases of scores that depend only on the distance of query and key.

Kept as one number for each distance, they take O(T + S) memory; as one number for each
pair, O(T S).

Shapes: H heads, T target length, S source length, N = T + S - 1 distances.
"""

import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor
from keras_seqattn.layers.shapes import check_tensor


class DistanceBias:
    """Holds a bias of the scores for each head and each distance of key and query.

    `dot_product_attention` takes it as its `bias`; the chunked implementation never
    expands it to all pairs.
    Shapes: H heads, T target length, S source length, N = T + S - 1 distances.

    Args:
        values: Float tensor `(H, N)`, or `(1, N)` for all heads, of finite numbers:
            `values[h, j - i + T - 1]` is added to the score of query i and key j.
        target_length: Number of queries T, an integer or a scalar tensor.
        learned: Whether `values` needs a gradient.

    Attributes:
        values: The tensor.
        target_length: The number of queries.
        learned: Whether `values` needs a gradient.

    Raises:
        ValueError: If an argument is of the wrong type.

    Example:
        >>> from keras import ops
        >>> bias = DistanceBias(ops.convert_to_tensor([[-1.0, 0.0, 1.0]]), 2)
        >>> ops.convert_to_numpy(bias.pairs()).tolist()
        [[[[0.0, 1.0], [-1.0, 0.0]]]]
    """

    def __init__(
        self, values: Tensor, target_length: int | Tensor, learned: bool = True
    ) -> None:
        check_tensor("values", values)
        arguments.index("target_length", target_length, 0)
        arguments.boolean("learned", learned)
        self.values = values
        self.target_length = target_length
        self.learned = learned

    def pairs(self) -> Tensor:
        """Returns the bias of all pairs, a float tensor `(1, H, T, S)`."""
        return relative_shift(self.values, self.target_length)[None]


def check_bias(
    bias: DistanceBias | Tensor | None,
    sizes: tuple[int | None, ...] = (None, None, None, None),
) -> None:
    """Checks that a bias fits scores of `sizes` (B, H, T, S), None = unknown."""
    if bias is None:
        return
    if isinstance(bias, DistanceBias):
        _check_distances(bias, *sizes[1:])
        return
    shape = tuple(np.shape(arguments.tensor("bias", bias)))
    if not shape or not arguments.may_broadcast(shape, sizes[-len(shape) :]):
        raise ValueError(
            "`bias` must be a `DistanceBias`, or broadcast to (batch, heads, target, "
            f"source) = {sizes}. Received: bias.shape={shape}."
        )


def _check_distances(bias, heads, target, source):
    """Checks that a `DistanceBias` fits these sizes, None = unknown."""
    shape = tuple(np.shape(bias.values))
    sizes = heads, target, source
    are_known = isinstance(target, int) and isinstance(source, int)
    columns = max(0, target + source - 1) if are_known else None
    fits = (
        len(shape) == 2
        and arguments.may_be(shape[0], 1, heads)
        and arguments.may_be(shape[1], columns)
        and arguments.may_be(bias.target_length, target)
    )
    if not fits:
        raise ValueError(
            "`bias` must be a `DistanceBias` of values (heads or 1, target + source - "
            "1) and the target's length, for (heads, target, source) = "
            f"{sizes}. Received: bias.values.shape={shape}, "
            f"bias.target_length={bias.target_length!r}."
        )


def of_pairs(bias: DistanceBias | Tensor | None) -> Tensor | None:
    """Returns a bias as a tensor that broadcasts to `(B, H, T, S)`, or None."""
    return bias.pairs() if isinstance(bias, DistanceBias) else bias


def count_heads(bias: DistanceBias | Tensor) -> int:
    """Returns a bias's number of heads, 1 if all share it; a tensor has rank 4."""
    return bias.values.shape[0] if isinstance(bias, DistanceBias) else bias.shape[1]


def relative_shift(values: Tensor, rows: int | Tensor) -> Tensor:
    """Computes a matrix of all pairs from one value for each distance.

    With values `(H, rows + columns - 1)`, `[h, i, j]` of the result
    `(H, rows, columns)` is `values[h, j - i + rows - 1]`.

    This is the relative shift of Transformer-XL, which Music Transformer calls skewing.
    A row of values is written once for each query, with one number appended, and read
    back in rows of the original length. So each row begins one value earlier than the
    row above it. For four queries and keys, and distances j - i from -3 (a) to 3 (g):

        written: rows + 1 zero   read in rows of 7        the last 4 columns
            a b c d e f g 0        a b c d e f g                d e f g
            a b c d e f g 0        0 a b c d e f                c d e f
            a b c d e f g 0        g 0 a b c d e                b c d e
            a b c d e f g 0        f g 0 a b c d                a b c d

    Reference:
        Dai et al. 2019 (Transformer-XL), appendix B; Huang et al. 2019 (Music
        Transformer), section 3.4.1. Differs: the values are the same for all queries.
    """
    heads, distances = ops.shape(values)
    if isinstance(rows, int) and not rows:
        return ops.zeros((heads, 0, distances + 1), values.dtype)
    x = ops.pad(values, ((0, 0), (0, 1)))
    x = ops.broadcast_to(x[:, None], (heads, rows, distances + 1))  # written
    x = ops.reshape(x, (heads, rows * (distances + 1)))[:, : rows * distances]
    return ops.reshape(x, (heads, rows, distances))[:, :, rows - 1 :]  # read


def relative_unshift(pairs: Tensor) -> Tensor:
    """Sums pairs `(H, rows, columns)` by distance: the gradient of `relative_shift`.

    It goes the steps of `relative_shift` backwards: what that reads is put back where
    it was written, zeros elsewhere, and the rows, copies of one, are summed.
    """
    heads, rows, columns = ops.shape(pairs)
    distances = rows + columns - 1
    x = ops.pad(pairs, ((0, 0), (0, 0), (rows - 1, 0)))  # as read: (H, rows, distances)
    x = ops.pad(ops.reshape(x, (heads, rows * distances)), ((0, 0), (0, rows)))
    x = ops.reshape(x, (heads, rows, distances + 1))  # as written
    return ops.sum(x, axis=1)[:, :distances]  # (H, distances)


def check_lengths(
    target_length: int | Tensor, source_length: int | Tensor, offset: int | Tensor
) -> None:
    """Raises an error if an argument is not an integer or scalar integer tensor."""
    arguments.index("target_length", target_length, 0)
    arguments.index("source_length", source_length, 0)
    arguments.index("offset", offset)
