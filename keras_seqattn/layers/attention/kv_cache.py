"""Attention one position at a time, on keys and values kept from the steps before.

Shapes: B batch, W beams, L cache length, S source length, D width of an input, H heads,
G key and value heads, K key_dim, V value_dim.
"""

from keras import ops

from keras_seqattn import arguments
from keras_seqattn.layers.attention import masks
from keras_seqattn.layers.attention.distances import of_pairs
from keras_seqattn.layers.attention.step_checks import (
    BEAMS,
    check_cache_sizes,
    check_kept,
    checked_mask,
)
from keras_seqattn.layers.shapes import check_built, check_rank, check_tensor


class CachedSteps:
    """What multi-head attention does step by step, equal to its call on the whole.

    The methods are those of a layer with `HeadProjections` and the attention of
    `MultiHeadAttention`. Keys are kept as they are attended to: normed, and rotated by
    rotary positions. A cache is never reordered when beams are: what each slot wrote
    stays where it is, and `ancestry`, a small table that is reordered, says which beam
    wrote each position of a beam's history. Nor has it an end: a position beyond its
    room is written over the oldest. What is kept has the shape in which
    attention multiplies it, with slots of position and beam on one axis: a compiler
    transposes or copies any other at every step.
    Shapes: B batch, W beams, L cache length, S source length, D width of an input.
    """

    def initial_cache(self, batch_size, width, max_length):
        """Makes the empty cache of `step`.

        Args:
            batch_size: Number of sentences B.
            width: Number of beams W a sentence.
            max_length: Number of steps L the cache has room for.

        Returns:
            A dict of "key" `(B, G, K, L W)` and "value" `(B, G, L W, V)`, zeros.
        """
        check_cache_sizes(batch_size, width, max_length)
        heads, room = (batch_size, self.num_key_value_heads), max_length * width
        return {
            "key": ops.zeros((*heads, self.key_dim, room), self.compute_dtype),
            "value": ops.zeros((*heads, room, self.value_dim), self.compute_dtype),
        }

    def fill_cache(self, value, cache, index=0, width=1):
        """Writes the keys and values of a whole sequence, the same for all beams.

        A `step` at `index + T` goes on from there.

        Args:
            value: Float tensor `(B, T, D)`, the vectors at `index`, `index + 1`, ...
            cache: What `initial_cache` or another call gave.
            index: Position of the first vector, an integer or a scalar int32 tensor.
            width: Number of beams W a sentence.

        Returns:
            The cache with these positions.
        """
        check_built(self)
        check_kept("cache", cache, "initial_cache")
        arguments.index("index", index, 0)
        arguments.index("width", width, 1)
        entries = self.project_memory(value, start=index)
        entries = {
            "key": ops.repeat(entries["key"], width, axis=3),
            "value": ops.repeat(entries["value"], width, axis=2),
        }
        return _written(cache, entries, index * width)

    def step(self, query, cache, index, mask=None, ancestry=None):
        """Attends from one new position to itself and those before it.

        Equals row `index` of a call with `use_causal_mask=True` on the whole sequence,
        or on the last L positions of a longer one.

        Args:
            query: Float tensor `(B, W, D)`, the vector at `index` of each beam.
            cache: What `initial_cache` or the step before gave.
            index: The position, an integer or a scalar int32 tensor.
            mask: Bool tensor `(B, L)` over the positions of the cache, as it holds them
                (`held_positions`), True = may attend; False hides the padding before a
                short prompt, or another sentence.
            ancestry: Int32 tensor `(B, W, L)`, the beam that wrote each position of a
                beam's history, as `mark_ancestry` returns it for `index`; None for a
                single beam.

        Returns:
            Float tensor `(B, W, output_shape)`, and the cache with this position.

        Raises:
            ValueError: If `ancestry` is None and there are several beams.
        """
        check_built(self)
        check_tensor("query", query, BEAMS)
        check_kept("cache", cache, "initial_cache")
        arguments.index("index", index, 0)
        width = query.shape[1]
        if ancestry is not None:
            check_tensor("ancestry", ancestry, "(batch, beams, length)", integers=True)
        if ancestry is None and width != 1:
            raise ValueError(
                "`ancestry` must be given for several beams, which a search reorders: "
                "keep `layers.initial_ancestry(...)` in the state under 'beam' and "
                "pass `layers.mark_ancestry(ancestry, index)`. "
                f"Received: ancestry=None with {width} beams."
            )
        keys = self._beams_placed(self.project_key(query), index)
        entries = _kept(keys, self.project_value(query))
        length = cache["key"].shape[3] // width
        cache = _written(cache, entries, index % length * width)
        bias = self._slots_bias(length, index)  # (1, H, 1, L)
        # The beams stand at one position, so the kernel must not count them from 0.
        heads, _ = self._attend(
            self._beams_placed(self.project_query(query), index),
            *_read(cache),  # (B, L W, G, K), (B, L W, G, V)
            mask=self._history(width, length, index, mask, ancestry),
            bias=None if bias is None else ops.repeat(bias, width, axis=-1),
            window=None,
            implementation="explicit",
        )
        return self.project_output(query, heads), cache

    def _history(self, width, length, index, mask, ancestry):
        """Marks what of the cache each beam may see, `(B or 1, 1, W or 1, L W)`."""
        mask = checked_mask("mask", mask, length)
        held = held_positions(length, index)[None]  # (1, L)
        seen = held >= 0
        if self.sliding_window is not None:
            near = index - held < self.sliding_window
            seen = ops.logical_and(seen, near)
        seen = masks.combine_masks(seen, mask)
        if width == 1:
            return seen[:, None, None, :]
        slots = ops.arange(width, dtype="int32")
        own = ops.equal(ancestry[..., None], slots)  # (B, W, L, W)
        own = ops.logical_and(own, seen[:, None, :, None])
        return ops.reshape(own, (-1, 1, width, length * width))

    def _slots_bias(self, length, index):
        """Computes the bias of the positions that the slots hold, or None."""
        bias = self._bias(1, length, length - 1)
        if bias is None:
            return None
        # As the last of a full cache sees them, nearest last.
        behind = held_positions(length, index) - index + length - 1
        return ops.take(of_pairs(bias), ops.maximum(behind, 0), axis=-1)

    def project_memory(self, value, key=None, start=0):
        """Projects what `step_memory` attends to, once for all steps and beams.

        Args:
            value: Float tensor `(B, S, D)`.
            key: Float tensor `(B, S, D)`; `value` when None.
            start: Position of the first vector, an integer or a scalar tensor.

        Returns:
            A dict of "key" `(B, G, K, S)` and "value" `(B, G, S, V)`.
        """
        check_built(self)
        check_tensor("value", value, "(batch, length, width)")
        if key is not None:
            check_tensor("key", key, "(batch, length, width)")
        arguments.index("start", start)
        keys = self.project_key(value if key is None else key)
        return _kept(self._placed(keys, start), self.project_value(value))

    def step_memory(
        self, query, memory, mask=None, index=None, return_attention_scores=False
    ):
        """Attends from one new position of each beam to a projected memory.

        Equals row `index` of a call of the layer on the whole sequence and memory.

        Args:
            query: Float tensor `(B, W, D)`; the beams stand on the query axis and
                share the memory.
            memory: What `project_memory` gave.
            mask: Bool tensor `(B, S)`, True = may attend.
            index: Position of the beams among the memory's, an integer or a scalar
                int32 tensor; needed with `positions` or `sliding_window`.
            return_attention_scores: Whether to return the weights too.

        Returns:
            Float tensor `(B, W, output_shape)`; with `return_attention_scores` also
            the weights `(B, H, W, S)`.

        Raises:
            ValueError: If `index` is needed and None.
        """
        check_built(self)
        check_tensor("query", query, BEAMS)
        check_kept("memory", memory, "project_memory")
        arguments.check_flag("return_attention_scores", return_attention_scores)
        if index is not None:
            arguments.index("index", index, 0)
        queries = self.project_query(query)  # (B, W, H, K)
        mask = checked_mask("mask", mask, memory["key"].shape[3])
        mask = masks.input_masks(None, mask, None, None)  # (B, 1, S)
        if self.positions is not None or self.sliding_window is not None:
            _check_given("index", index)
        queries = self._beams_placed(queries, index)
        length = ops.shape(memory["key"])[3]
        # The beams stand at one position, so the kernel must not count them from 0.
        heads, scores = self._attend(
            queries,
            *_read(memory),  # (B, S, G, K), (B, S, G, V)
            mask=masks.combine_masks(mask, self._window_at(length, index)),
            bias=self._bias(1, length, index),
            window=None,
            implementation="explicit",
            return_scores=return_attention_scores,
        )
        output = self.project_output(query, heads)
        return (output, scores) if return_attention_scores else output

    def _beams_placed(self, heads, index):
        """Rotates heads `(B, W, H, K)` of beams, which all stand at `index`."""
        if self.positions is None:
            return heads
        rows = ops.reshape(heads, (-1, 1, *heads.shape[2:]))  # (B W, 1, H, K)
        return ops.reshape(self._placed(rows, index), (-1, *heads.shape[1:]))

    def _window_at(self, length, index):
        """Returns which positions a query at `index` may see, `(1, L)`, or None."""
        if self.sliding_window is None:
            return None
        return masks.window_mask(1, length, self.sliding_window, index)


def held_positions(length, index):
    """Returns which positions the slots of a cache hold once `index` is written.

    A cache is a ring: a position is written over the one that stands as many before
    it as there are slots.

    Args:
        length: Number of slots L.
        index: The position, an integer or a scalar int32 tensor.

    Returns:
        Int32 tensor `(L,)`; negative where nothing has been written.

    Example:
        >>> [int(x) for x in held_positions(3, 4)]
        [3, 4, 2]
    """
    slots = ops.arange(length, dtype="int32")
    return index - (index - slots) % length


def initial_ancestry(batch_size, width, max_length):
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


def mark_ancestry(ancestry, index):
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
    own = initial_ancestry(batch_size, width, 1)
    return ops.slice_update(ancestry, (0, 0, index % ancestry.shape[2]), own)


def grown(x, axis, length, index, width=1):
    """Adds slots to a ring; the positions that it holds move to theirs.

    Args:
        x: Tensor with L W slots, of a position and a beam, on one axis.
        axis: The axis.
        length: Number of positions that it gets room for, no fewer than L.
        index: Number of steps taken, an integer or a scalar int32 tensor.
        width: Number of slots of a position W.

    Returns:
        The longer tensor; what stands where no position was held has no meaning.

    Example:
        >>> ring = ops.array([3, 4, 2])  # after five steps
        >>> [int(x) for x in grown(ring, 0, 5, 5)]
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


def grown_cache(cache, length, index, width):
    """Adds slots to a cache.

    Args:
        cache: What `CachedSteps.initial_cache` or a step gave.
        length: Number of positions that it gets room for.
        index: Number of steps taken, an integer or a scalar int32 tensor.
        width: Number of beams W.

    Returns:
        A dict like `cache`.

    Example:
        >>> cache = {"key": ops.ones((1, 1, 2, 3)), "value": ops.ones((1, 1, 3, 2))}
        >>> tuple(grown_cache(cache, 6, 3, 1)["value"].shape)
        (1, 1, 6, 2)
    """
    return {
        "key": grown(cache["key"], 3, length, index, width),
        "value": grown(cache["value"], 2, length, index, width),
    }


def _kept(keys, values):
    """Orders keys `(B, S, G, K)` and values `(B, S, G, V)` as they are kept."""
    return {
        "key": ops.transpose(keys, (0, 2, 3, 1)),  # (B, G, K, S)
        "value": ops.transpose(values, (0, 2, 1, 3)),  # (B, G, S, V)
    }


def _read(kept):
    """Returns the keys and values that `_kept` ordered."""
    keys = ops.transpose(kept["key"], (0, 3, 1, 2))
    return keys, ops.transpose(kept["value"], (0, 2, 1, 3))


def _written(cache, entries, place):
    """Writes entries of some slots, in the order of `_kept`, from slot `place` on."""
    return {
        "key": ops.slice_update(cache["key"], (0, 0, 0, place), entries["key"]),
        "value": ops.slice_update(cache["value"], (0, 0, place, 0), entries["value"]),
    }


def _check_given(name, index):
    if index is None:
        raise ValueError(
            f"`{name}` must be given where the layer has `positions` or "
            f"`sliding_window`. Received: {name}=None."
        )
