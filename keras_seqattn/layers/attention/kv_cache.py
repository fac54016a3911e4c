"""The keys and values that multi-head attention keeps from step to step.

Shapes: B batch, W beams, L positions, N = L W slots, S source length, G key and value
heads, K key_dim, V value_dim.
"""

from typing import Any, NamedTuple, Self

from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor
from keras_seqattn.layers.attention import masks
from keras_seqattn.layers.shapes import check_rank


class KVCache(NamedTuple):
    """Keys and values of N slots, each of one position and one beam.

    A ring: a position beyond its room is written over the oldest, so it has no end. It
    is never reordered when beams are: what each slot wrote stays where it is, and
    `ancestry`, a small table that is reordered, says which beam wrote each position of
    a beam's history. The tensors have the shapes in which attention multiplies them,
    with position and beam on one axis: a compiler transposes or copies any other at
    every step. Immutable: each method returns another cache.

    Args:
        key: Float tensor `(B, G, K, N)`, as they are attended to: normed, and rotated
            by rotary positions.
        value: Float tensor `(B, G, N, V)`.
    """

    key: Any
    value: Any

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> Self:
        """Keeps keys `(B, S, G, K)` and values `(B, S, G, V)`, a slot a position."""
        keys = ops.transpose(keys, (0, 2, 3, 1))
        return cls(keys, ops.transpose(values, (0, 2, 1, 3)))

    def read(self) -> tuple[Tensor, Tensor]:
        """Returns the keys `(B, N, G, K)` and values `(B, N, G, V)`."""
        keys = ops.transpose(self.key, (0, 3, 1, 2))
        return keys, ops.transpose(self.value, (0, 2, 1, 3))

    def repeat(self, width: int) -> "KVCache":
        """Returns a cache with `width` slots a position, of the same key and value."""
        key = ops.repeat(self.key, width, axis=3)
        return KVCache(key, ops.repeat(self.value, width, axis=2))

    def write(self, entries: "KVCache", slot: int | Tensor) -> "KVCache":
        """Writes the slots of `entries`, a `KVCache`, from number `slot` on."""
        key = ops.slice_update(self.key, (0, 0, 0, slot), entries.key)
        value = ops.slice_update(self.value, (0, 0, slot, 0), entries.value)
        return KVCache(key, value)

    def grow(self, length: int, index: int | Tensor, width: int = 1) -> "KVCache":
        """Makes room for `length` positions, as `grow_axis` does."""
        return KVCache(
            grow_axis(self.key, 3, length, index, width),
            grow_axis(self.value, 2, length, index, width),
        )


def grow_axis(
    x: Tensor, axis: int, length: int, index: int | Tensor, width: int = 1
) -> Tensor:
    """Adds slots to a ring, on one axis; the positions that it holds move to theirs.

    `length` is the number of positions it gets room for, no fewer than it has, `index`
    the number of steps taken, and `width` the number of slots of a position. What
    stands where no position was held has no meaning.

    Example:
        >>> ring = ops.array([3, 4, 2])  # after five steps
        >>> [int(x) for x in grow_axis(ring, 0, 5, 5)]
        [3, 4, 2, 3, 4]
    """
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    if isinstance(index, int) and index == 0:  # nothing has to move
        return ops.zeros((*before, length * width, *after), x.dtype)
    old = x.shape[axis] // width
    places = held_positions(length, index - 1) % old
    slots = ops.reshape(x, (*before, old, width, *after))
    moved = ops.take(slots, places, axis=axis)
    return ops.reshape(moved, (*before, length * width, *after))


def visible_slots(
    width: int,
    length: int,
    index: int | Tensor,
    window: int | None = None,
    mask: Tensor | None = None,
    ancestry: Tensor | None = None,
) -> Tensor:
    """Returns the slots that beams may attend to at a step: `(B or 1, 1, W or 1, L W)`.

    `mask` `(B, L)` is over the positions as the cache holds them; `ancestry`
    `(B, W, L)` is what `mark_ancestry` returns, None for a single beam. A window hides
    positions j with index - j >= window.

    Example:
        >>> visible_slots(1, 4, index=2, window=2)[0, 0, 0].tolist()
        [False, True, True, False]
    """
    held = held_positions(length, index)[None]  # (1, L)
    seen = held >= 0
    if window is not None:
        seen = ops.logical_and(seen, index - held < window)
    seen = masks.combine_masks(seen, mask)
    if width == 1:
        return seen[:, None, None, :]
    slots = ops.arange(width, dtype="int32")
    inherited = ops.equal(ancestry[..., None], slots)  # (B, W, L, W)
    inherited = ops.logical_and(inherited, seen[:, None, :, None])
    return ops.reshape(inherited, (-1, 1, width, length * width))


def held_positions(length: int, index: int | Tensor) -> Tensor:
    """Returns the positions that slots hold once `index` is written: int32 `(L,)`.

    A cache is a ring: a position is written over the one that stands L before it. What
    is negative has not been written.

    Example:
        >>> [int(x) for x in held_positions(3, 4)]
        [3, 4, 2]
    """
    slots = ops.arange(length, dtype="int32")
    return index - (index - slots) % length


def initial_ancestry(batch_size: int | Tensor, width: int, max_length: int) -> Tensor:
    """Makes the table that tells beams their history in a cache that stays in place.

    A cache is too large to be reordered whenever beams change places. The table is
    reordered in its stead: it stands under `state["beam"]`, the caches stand under
    `state["sentence"]`.

    Args:
        batch_size: Number of sentences B, an integer or a scalar tensor.
        width: Number of beams W a sentence.
        max_length: Number of steps L that the caches have room for.

    Returns:
        Int32 tensor `(B, W, L)`: each beam is its own ancestor everywhere.

    Example:
        >>> [int(x) for x in initial_ancestry(1, 2, 3)[0, 1]]
        [1, 1, 1]
    """
    check_cache_sizes(batch_size, width, max_length)
    slots = ops.arange(width, dtype="int32")[None, :, None]
    return ops.broadcast_to(slots, (batch_size, width, max_length))


def mark_ancestry(ancestry: Tensor, index: int | Tensor) -> Tensor:
    """Records that every beam writes position `index` itself.

    Called once a step, before the blocks' `step`, which all take what it returns.

    Args:
        ancestry: Int32 tensor `(B, W, L)`, reordered as the beams were.
        index: The position, an integer or a scalar int32 tensor.

    Returns:
        Int32 tensor `(B, W, L)`, the beam that wrote each position of a beam's history.

    Example:
        >>> ancestry = ops.zeros((1, 2, 3), "int32")  # both beams came from beam 0
        >>> [int(x) for x in mark_ancestry(ancestry, 1)[0, 1]]
        [0, 1, 0]
    """
    check_rank("ancestry", arguments.tensor("ancestry", ancestry), "(batch, beams, L)")
    arguments.index("index", index)
    batch_size, width, _ = ops.shape(ancestry)
    itself = initial_ancestry(batch_size, width, 1)
    return ops.slice_update(ancestry, (0, 0, index % ancestry.shape[2]), itself)


def check_cache_sizes(batch_size: Any, width: Any, max_length: Any) -> None:
    """Raises an error if a size of a cache is not an integer or a tensor of one."""
    arguments.index("batch_size", batch_size, 0)
    arguments.index("width", width, 1)
    arguments.index("max_length", max_length, 0)
