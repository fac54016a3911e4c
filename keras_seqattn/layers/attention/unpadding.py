"""Batches without their padding: only the vectors of real tokens.

Layers that work on each vector by itself (projections, norms, dropout, the
feed-forward) need no padding. Attention gets its heads padded, at their positions
`(B, L, ...)`, and its output is unpadded again. The literature calls the two operations
`pad_input` and `unpad_input`. `benchmarks.paths` measures this in its row "unpad".

Shapes: B batch, L length, P = B L positions, M tokens, D width, H heads, K width of a
head.
"""

import math

from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.backend import autodiff

# The number of tokens is rounded up to a multiple of this, so that there are fewer
# shapes: a library prepares its matrix products for each new one.
MULTIPLE = 128


class Unpadding:
    """Knows which positions of a batch hold a token; unpads and pads.

    The M tokens are all real tokens of the mask `(B, L)`, and some padding to round up
    their number. `inputs` and `output` have the interface of `axes.Folding`: attention
    applies them to heads before and after it attends.

    Attributes:
        positions: The position of each token, int32 `(M,)`.
        tokens: The token at each position, int32 `(P,)`; M where there is none.
    """

    def __init__(self, mask: Tensor) -> None:
        self._sizes = ops.shape(mask)
        real = ops.cast(ops.reshape(mask, (-1,)), "int32")  # (P,)
        index = ops.arange(math.prod(self._sizes), dtype="int32")
        until = ops.cumsum(real)
        count = ops.sum(real)
        # All real positions come first, then the padding.
        tokens = ops.where(real > 0, until - 1, count + index - until)
        positions = ops.scatter_update(index, tokens[:, None], index)
        # A batch of only padding has tokens too: `inputs` needs one to copy.
        self.positions: Tensor = positions[
            : -(-ops.maximum(count, 1) // MULTIPLE) * MULTIPLE
        ]
        self.tokens: Tensor = ops.minimum(tokens, ops.shape(self.positions)[0])
        self._by_heads = {}

    def unpad(self, x: Tensor) -> Tensor:
        """Returns the tokens `(1, M, D)` of vectors `(B, L, D)`."""
        vectors = ops.reshape(x, (-1, x.shape[-1]))
        moved = _move(vectors, _take(self.positions), _take_or_zero(self.tokens))
        return ops.expand_dims(moved, 0)

    def pad(self, x: Tensor) -> Tensor:
        """Returns tokens `(1, M, D)` at their positions `(B, L, D)`, the rest zero."""
        vectors = _move(
            ops.squeeze(x, 0), _take_or_zero(self.tokens), _take(self.positions)
        )
        return ops.reshape(vectors, (*self._sizes, x.shape[-1]))

    def inputs(self, x: Tensor) -> Tensor:
        """Returns heads `(1, M, H, K)` at `(B, L, H, K)`, elsewhere copies of the last.

        Copies will do there, since attention masks these positions.
        """
        heads, width = x.shape[2:]
        positions, _, copied = self._of_heads(heads)
        x = _move(ops.reshape(x, (-1, width)), _take(copied), _take(positions))
        batch_size, length = self._sizes
        x = ops.reshape(x, (batch_size, heads, length, width))
        # If attention transposes it back, TensorFlow leaves out both transposes.
        return ops.transpose(x, (0, 2, 1, 3))  # (B, L, H, K)

    def output(self, x: Tensor, query: Tensor) -> Tensor:
        """Returns the outputs `(B, L, H, V)` of heads as tokens `(1, M, H, V)`."""
        heads, width = x.shape[2:]
        positions, tokens, _ = self._of_heads(heads)
        x = ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, width))  # (B H L, V)
        x = _move(x, _take(positions), _take_or_zero(tokens))
        return ops.reshape(x, (1, -1, heads, width))

    def _of_heads(self, heads):
        """Returns three tensors of indices, computed once for each number of heads.

        Positions `(M H,)`: the place among `(B, H, L)` of each head of each token.
        Tokens `(B H L,)`: the place among `(M, H)` of each head of each position; M H,
        one past the end, without a token, for `_take_or_zero`. Copied `(B H L,)`: the
        same, but M H - 1, the last, without a token, for `_take`.
        """
        if heads in self._by_heads:
            return self._by_heads[heads]
        batch_size, length = self._sizes
        head = ops.arange(heads, dtype="int32")
        sentence = self.positions // length * heads
        positions = (sentence[:, None] + head) * length
        positions = positions + (self.positions % length)[:, None]  # (M, H)
        tokens = ops.reshape(self.tokens, (batch_size, 1, length))
        none = ops.shape(self.positions)[0] * heads
        tokens = ops.minimum(tokens * heads + head[:, None], none)  # (B, H, L)
        positions, tokens = (ops.reshape(x, (-1,)) for x in (positions, tokens))
        self._by_heads[heads] = positions, tokens, ops.minimum(tokens, none - 1)
        return self._by_heads[heads]


def _move(x, move, back):
    """Moves vectors by `move`, and their gradient by `back`, without summing it."""
    return autodiff.custom_gradient(lambda x: (move(x), back))(x)


def _take(indices):
    """Returns a function that takes vectors `(N, D)` by their indices."""
    return lambda x: ops.take(x, indices, axis=0)


def _take_or_zero(indices):
    """Returns a function that takes vectors `(N, D)`; the index N takes zeros."""

    def take(x):
        zero = ops.zeros((1, x.shape[-1]), x.dtype)
        return ops.take(ops.concatenate([x, zero]), indices, axis=0)

    return take
