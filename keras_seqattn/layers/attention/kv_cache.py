"""The keys and values that multi-head attention keeps from step to step.

A cache is a ring buffer of L places with W slots each, one for each beam:

    slot (p % L) * W + w    # what beam w wrote at position p

It is a ring because in continuous batching the index counts all steps of a program and
exceeds L, although no sentence is longer than L.

Shapes: B batch, W beams, L places, S source length, G key and value heads, K key_dim,
V value_dim.
"""

import numbers
from typing import Any, NamedTuple, Self

from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor
from keras_seqattn.layers.attention import masks
from keras_seqattn.layers.shapes import check_rank, check_tensor


class KVCache(NamedTuple):
    """Holds keys and values: L W slots of a ring, or S of a projected memory.

    Position p overwrites position p - L. The slots are not reordered when beams are:
    what is written stays where it is, and a small table that is reordered, `ancestry`,
    tells which beam wrote each position of a beam's history. The tensors have the
    layout in which attention multiplies them, with position and beam on one axis: a
    compiler would transpose or copy any other layout at every step. Immutable: `write`,
    `repeat` and `grow` return a new cache.

    Args:
        key: Float tensor `(B, G, K, slots)`, the keys as they are attended to: normed,
            and rotated by rotary positions.
        value: Float tensor `(B, G, slots, V)`.
    """

    key: Any
    value: Any

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> Self:
        """Makes S slots of keys `(B, S, G, K)` and values `(B, S, G, V)`."""
        keys = ops.transpose(keys, (0, 2, 3, 1))
        return cls(keys, ops.transpose(values, (0, 2, 1, 3)))

    def read(self) -> tuple[Tensor, Tensor]:
        """Returns the keys `(B, slots, G, K)` and values `(B, slots, G, V)`."""
        # Every kernel takes this layout and transposes it back: XLA drops both.
        keys = ops.transpose(self.key, (0, 3, 1, 2))
        return keys, ops.transpose(self.value, (0, 2, 1, 3))

    def count_places(self, width: int) -> int:
        """Returns the number of places L of a ring, which must be for `width` beams."""
        slots = self.key.shape[3]
        if slots % width:
            raise ValueError(
                "`cache` must be of `initial_cache` for the beams of `query`. "
                f"Received: a cache of {slots} slots, with {width} beams."
            )
        return slots // width

    def repeat(self, width: int) -> "KVCache":
        """Returns a cache with each slot repeated `width` times, once for each beam."""
        key = ops.repeat(self.key, width, axis=3)
        return KVCache(key, ops.repeat(self.value, width, axis=2))

    def write(self, entries: "KVCache", slot: int | Tensor) -> "KVCache":
        """Writes the slots of `entries`, a `KVCache`, beginning at number `slot`."""
        key = ops.slice_update(self.key, (0, 0, 0, slot), entries.key)
        value = ops.slice_update(self.value, (0, 0, slot, 0), entries.value)
        return KVCache(key, value)

    def grow(self, length: int, num_steps: int | Tensor, width: int) -> "KVCache":
        """Grows the ring to `length` places, as `grow_axis` does."""
        return KVCache(
            grow_axis(self.key, 3, length, num_steps, width),
            grow_axis(self.value, 2, length, num_steps, width),
        )


def grow_axis(
    x: Tensor, axis: int, length: int, num_steps: int | Tensor, width: int = 1
) -> Tensor:
    """Adds places to a ring that lies on one axis, `width` slots each.

    After `num_steps` steps, the ring gets `length` places, no fewer than it has. What
    it holds moves to its new place; what the other places hold has no meaning. A ring
    that has wrapped around has lost positions that the longer ring has places for, so a
    sentence that continues must have begun after them.

    Example:
        >>> ring = ops.array([3, 4, 2])  # after 5 steps: the last 3 of positions 0 to 4
        >>> [int(x) for x in grow_axis(ring, 0, length=5, num_steps=5)[2:]]
        [2, 3, 4]
    """
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    if isinstance(num_steps, int) and num_steps == 0:  # nothing has to move
        return ops.zeros((*before, length * width, *after), x.dtype)
    old_length = x.shape[axis] // width
    # Each new place takes what is at the old place of the position it is to hold.
    old_places = held_positions(length, num_steps - 1) % old_length
    places = ops.reshape(x, (*before, old_length, width, *after))
    moved = ops.take(places, old_places, axis=axis)
    return ops.reshape(moved, (*before, length * width, *after))


def visible_slots(
    width: int,
    length: int,
    index: int | Tensor,
    window: int | None = None,
    mask: Tensor | None = None,
    ancestry: Tensor | None = None,
) -> Tensor:
    """Marks the slots that beams may attend to at a step: `(B or 1, 1, W or 1, L W)`.

    `index` is the position written last. `mask` `(B, L)` is over the places of the
    cache; `ancestry` `(B, W, L)` is what `mark_ancestry` returns, None for a single
    beam. A window hides positions j with index - j >= window.

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
    beams = ops.arange(width, dtype="int32")
    # [b, w, l, v]: beam v wrote what is at place l of the history of beam w. `seen`
    # hides the places not yet written, where `ancestry` has no meaning.
    inherited = ops.equal(ancestry[..., None], beams)  # (B, W, L, W)
    inherited = ops.logical_and(inherited, seen[:, None, :, None])
    return ops.reshape(inherited, (-1, 1, width, length * width))


def held_positions(length: int, index: int | Tensor) -> Tensor:
    """Returns the position at each place once `index` is written: int32 `(L,)`.

    They are index - L + 1 to index. A place with a negative one is not yet written.

    Example:
        >>> [int(x) for x in held_positions(3, 4)]
        [3, 4, 2]
    """
    places = ops.arange(length, dtype="int32")
    return index - (index - places) % length


def initial_ancestry(batch_size: int | Tensor, width: int, max_length: int) -> Tensor:
    """Makes the table of which beam wrote each position of each beam's history.

    A cache is too large to be reordered whenever beams change places. The table is
    reordered instead: it belongs under `state["beam"]`, the caches belong under
    `state["sentence"]`.

    Args:
        batch_size: Number of sentences B, an integer or a scalar tensor.
        width: Number of beams W per sentence.
        max_length: Number of steps L that the caches have capacity for.

    Returns:
        Int32 tensor `(B, W, L)`: each beam is its own ancestor everywhere.

    Raises:
        ValueError: If a size is not an integer or a scalar tensor.

    Example:
        >>> [int(x) for x in initial_ancestry(1, 2, 3)[0, 1]]
        [1, 1, 1]
    """
    check_cache_sizes(batch_size, width, max_length)
    beams = ops.arange(width, dtype="int32")[None, :, None]
    return ops.broadcast_to(beams, (batch_size, width, max_length))


def mark_ancestry(ancestry: Tensor, index: int | Tensor) -> Tensor:
    """Records that every beam writes position `index` itself.

    Call it once per step, before the `step` of the blocks, which all take its result.

    Args:
        ancestry: Int32 tensor `(B, W, L)`, reordered as the beams were.
        index: The position, an integer or a scalar int32 tensor.

    Returns:
        Int32 tensor `(B, W, L)`, the beam that wrote each position of a beam's history.

    Raises:
        ValueError: If `ancestry` does not have three axes, or `index` is not an integer
            or a scalar tensor.

    Example:
        >>> from keras import ops
        >>> ancestry = ops.zeros((1, 2, 3), "int32")  # both beams came from beam 0
        >>> [int(x) for x in mark_ancestry(ancestry, 1)[0, 1]]
        [0, 1, 0]
    """
    check_rank("ancestry", arguments.tensor("ancestry", ancestry), "(batch, beams, L)")
    arguments.index("index", index)
    batch_size, width, _ = ops.shape(ancestry)
    itself = initial_ancestry(batch_size, width, 1)
    return ops.slice_update(ancestry, (0, 0, index % ancestry.shape[2]), itself)


def check_ancestry(ancestry: Tensor | None, width: int) -> None:
    """Raises an error if several beams have no ancestry, or it is not a table."""
    if ancestry is not None:
        check_tensor("ancestry", ancestry, "(batch, beams, length)", integers=True)
    elif width != 1:
        raise ValueError(
            "`ancestry` must be given for several beams, which a search reorders: "
            "keep `layers.initial_ancestry(...)` in the state under 'beam' and "
            "pass `layers.mark_ancestry(ancestry, index)`. "
            f"Received: ancestry=None with {width} beams."
        )


def check_capacity(
    entries: KVCache, cache: KVCache, index: int | Tensor, width: int
) -> None:
    """Raises an error if the cache ends before the entries that begin at `index`.

    XLA would write them earlier, over other positions.
    """
    length, slots = entries.key.shape[3], cache.key.shape[3]
    sizes = length, slots, index, width
    are_known = all(isinstance(size, numbers.Integral) for size in sizes)
    if are_known and (index + length) * width > slots:
        raise ValueError(
            f"`cache` must have a place for each position, at least {index + length}. "
            f"Received: a cache of {slots // width} places, for {length} positions "
            f"from index={index} on."
        )


def check_cache_sizes(batch_size: Any, width: Any, max_length: Any) -> None:
    """Raises an error if a size of a cache is not an integer or a tensor of one."""
    arguments.index("batch_size", batch_size, 0)
    arguments.index("width", width, 1)
    arguments.index("max_length", max_length, 0)
