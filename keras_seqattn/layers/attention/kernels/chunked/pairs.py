"""Pairs of a query block and a key/value block: which see each other, masks, dropout.

In this package a pair is a pair of blocks, not of a query and a key.

Shapes: B batch, T target length, S source length, H query heads, G key and value heads,
R = H / G, K key_dim; query blocks of t queries, key/value blocks of s keys. Scores have
their keys first and their heads on two axes: `(B, G, S, R, T)`, and a block of them
`(B, G, s, R, t)`. An axis of length 1 of a mask or a bias is broadcast.
"""

import keras
from keras import ops

from keras_seqattn.annotations import Seed, Tensor
from keras_seqattn.backend.ops import as_int32
from keras_seqattn.backend.random import computed_uniform
from keras_seqattn.layers.attention import masks
from keras_seqattn.layers.attention.kernels.chunked.blocks import Blocks

# The largest numbers of queries and of keys in a block. With more, one head's scores of
# a block, here 2 MiB, do not fit a core's cache; with fewer, a step of a loop has too
# little to do.
Q_BLOCK, KV_BLOCK = 1024, 512
# A block of t queries within a window of w keys computes about t + w scores for each
# query, which needs w. So a window limits blocks to about its own length, but never to
# less than this: a step of a loop would have too little to do.
SHORTEST_BLOCK = 128


class BlockPairs:
    """The pairs of a query block `i` and a key/value block `j`.

    Lengths may be tensors, if a functional model leaves them unknown. `block_length` is
    the largest number of queries, and of keys, in a block; None takes `Q_BLOCK` and
    `KV_BLOCK`, or about the length of the window. The other arguments are those of
    `dot_product_attention`.

    Example:
        >>> x = ops.zeros((1, 6, 2, 4))
        >>> pairs = BlockPairs(x, x, causal=True, block_length=2)
        >>> [tuple(int(end) for end in pairs.kv_range(i)) for i in range(3)]
        [(0, 1), (0, 2), (0, 3)]
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        window: int | None = None,
        offset: int | Tensor = 0,
        dropout: float = 0.0,
        seed: Seed = None,
        block_length: int | None = None,
    ) -> None:
        q_longest, kv_longest = block_length or Q_BLOCK, block_length or KV_BLOCK
        if window is not None and block_length is None:
            q_longest = kv_longest = min(KV_BLOCK, max(SHORTEST_BLOCK, window))
        self.q: Blocks = Blocks.of(ops.shape(query)[1], q_longest)
        self.kv: Blocks = Blocks.of(ops.shape(key)[1], kv_longest)
        self.groups: int = key.shape[2]
        self.repeats: int = query.shape[2] // key.shape[2]
        self._offset = as_int32(offset)
        # Query number n is at position p = n + offset. It sees the key at position k if
        # nearest <= p - k <= farthest; None is no bound. `nearest` is negative in a
        # window that is not causal, where later keys are seen too, and None only
        # without `causal` and a window.
        self._farthest = None if window is None else window - 1
        self._nearest = 0 if causal else None if window is None else 1 - window
        self._mask = None if mask is None else self.put_keys_first(self.broadcast(mask))
        self._dropout = dropout
        if dropout > 0.0:
            self._seed = keras.random.randint((), 0, 2**31 - 1, seed=seed)

    @property
    def is_windowed(self) -> bool:
        """Whether a block, of queries or of keys, sees only those near it."""
        return self._farthest is not None

    @property
    def sees_all(self) -> bool:
        """Whether all blocks see each other, whatever the mask."""
        return self._nearest is None

    def kv_range(self, i: int | Tensor) -> tuple[int | Tensor, int | Tensor]:
        """Returns the first and the end of the key/value blocks that `i` sees."""
        first = i * self.q.length + self._offset
        last = first + self.q.length - 1
        low = None if self._farthest is None else first - self._farthest
        high = None if self._nearest is None else last - self._nearest
        return self.kv.blocks_between(low, high)

    def q_range(self, j: int | Tensor) -> tuple[int | Tensor, int | Tensor]:
        """Returns the first and the end of the query blocks that see `j`."""
        first = j * self.kv.length - self._offset
        last = first + self.kv.length - 1
        low = None if self._nearest is None else first + self._nearest
        high = None if self._farthest is None else last + self._farthest
        return self.q.blocks_between(low, high)

    def visible(self, i: int | Tensor, j: int | Tensor) -> Tensor | None:
        """Returns what is not masked, bool `(B, G, s, R, t)`, or None for all."""
        queries = ops.arange(self.q.length, dtype="int32") + i * self.q.length
        keys = ops.arange(self.kv.length, dtype="int32") + j * self.kv.length
        keys = keys[:, None, None]
        distance = queries + self._offset - keys  # (s, 1, t)
        padding = self.kv.padding
        is_padded = not isinstance(padding, int) or padding > 0
        return masks.combine_masks(
            None if self._mask is None else self.block(self._mask, i, j),
            None if self._nearest is None else distance >= self._nearest,
            None if self._farthest is None else distance <= self._farthest,
            keys < self.kv.total if is_padded else None,
        )

    def dropout(self, i: int | Tensor, j: int | Tensor, like: Tensor) -> Tensor | float:
        """Draws the factors of a block: 0, or 1 / (1 - dropout).

        They have the shape and dtype of `like`, and are the same in the forward and
        the backward pass: one half of their seed is that of this call, the other half
        is the number of the pair.
        """
        if self._dropout == 0.0:
            return 1.0
        seed = self._seed, i * self.kv.count + j
        draws = computed_uniform(ops.shape(like), seed, like.dtype)
        scale = ops.convert_to_tensor(1.0 / (1.0 - self._dropout), like.dtype)
        return ops.where(draws >= self._dropout, scale, 0.0)

    def broadcast(self, x: Tensor) -> Tensor:
        """Expands a mask or bias to rank 4, and axes of unknown length to the full one.

        Only static shapes tell whether an axis has length 1 and is to be broadcast; an
        axis of unknown length might turn out to have length 1.
        """
        for _ in range(4 - len(x.shape)):
            x = ops.expand_dims(x, 0)
        if None not in x.shape[1:]:
            return x
        full = (self.groups * self.repeats, self.q.total, self.kv.total)
        sizes = [
            1 if size == 1 else length
            for size, length in zip(x.shape[1:], full, strict=True)
        ]
        return ops.broadcast_to(x, (ops.shape(x)[0], *sizes))

    def put_keys_first(self, x: Tensor) -> Tensor:
        """Transposes `(B, H, T, S)` to `(B, G, S, R, T)`, padded to whole blocks."""
        batch, heads, target, source = ops.shape(x)
        heads = (1, 1) if x.shape[1] == 1 else (self.groups, self.repeats)
        x = ops.reshape(x, (batch, *heads, target, source))  # (B, G, R, T, S)
        x = ops.transpose(x, (0, 1, 4, 2, 3))  # (B, G, S, R, T)
        x = x if x.shape[2] == 1 else self.kv.pad(x, axis=2)
        return x if x.shape[4] == 1 else self.q.pad(x, axis=4)

    def block(self, x: Tensor, i: int | Tensor, j: int | Tensor) -> Tensor:
        """Slices a block `(B, G, s, R, t)` from what `put_keys_first` returned."""
        starts, sizes = [0] * 5, list(ops.shape(x))
        for axis, number, length in ((2, j, self.kv.length), (4, i, self.q.length)):
            if x.shape[axis] != 1:
                starts[axis], sizes[axis] = number * length, length
        return ops.slice(x, starts, sizes)

    def split_heads(self, x: Tensor) -> Tensor:
        """Reshapes `(B, G, s, R * t)` to `(B, G, s, R, t)`."""
        return ops.reshape(x, (*ops.shape(x)[:-1], self.repeats, self.q.length))
