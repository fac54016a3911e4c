"""Attention one position at a time, on keys and values kept from the steps before.

Shapes: B batch, W beams, L cache length, S source length, D width of an input, H heads,
G key and value heads, K key_dim, V value_dim.
"""

from keras import ops

from keras_seqattn.layers import masks


class CachedSteps:
    """What multi-head attention does step by step, equal to its call on the whole.

    The methods are those of a layer with `HeadProjections` and the attention of
    `MultiHeadAttention`. Keys are kept as they are attended to: normed, and rotated by
    rotary positions.
    Shapes: B batch, W beams, L cache length, S source length, D width of an input.
    """

    def initial_cache(self, batch_size, width, max_length):
        """Makes the empty cache of `step`.

        Args:
            batch_size: Number of sentences B.
            width: Number of beams W a sentence.
            max_length: Number of steps L the cache has room for.

        Returns:
            A dict of "key" `(B, W, L, G, K)` and "value" `(B, W, L, G, V)`, zeros.
        """
        shape = (batch_size, width, max_length, self.num_key_value_heads)
        return {
            "key": ops.zeros((*shape, self.key_dim), self.compute_dtype),
            "value": ops.zeros((*shape, self.value_dim), self.compute_dtype),
        }

    def fill_cache(self, value, cache, index=0):
        """Writes the keys and values of a whole sequence, the same for all beams.

        A `step` at `index + T` goes on from there.

        Args:
            value: Float tensor `(B, T, D)`, the vectors at `index`, `index + 1`, ...
            cache: What `initial_cache` or another call gave.
            index: Position of the first vector, an integer or a scalar int32 tensor.

        Returns:
            The cache with these positions.
        """
        entries = self.project_memory(value, start=index)
        width = cache["key"].shape[1]
        beams = {
            name: ops.repeat(ops.expand_dims(entry, 1), width, axis=1)
            for name, entry in entries.items()
        }
        return _written(cache, beams, index)

    def step(self, query, cache, index, mask=None):
        """Attends from one new position to itself and those before it.

        Equals row `index` of a call with `use_causal_mask=True` on the whole sequence.

        Args:
            query: Float tensor `(B, W, D)`, the vector at `index` of each beam.
            cache: What `initial_cache` or the step before gave.
            index: The position, an integer or a scalar int32 tensor.
            mask: Bool tensor `(B, L)` over the positions of the cache, True = may
                attend; False hides the padding before a short prompt.

        Returns:
            Float tensor `(B, W, output_shape)`, and the cache with this position.
        """
        width = query.shape[1]
        rows = ops.reshape(query, (-1, 1, query.shape[-1]))  # (B W, 1, D)
        entries = self.project_memory(rows, start=index)
        entries = {
            name: ops.reshape(entry, (-1, width, *entry.shape[1:]))
            for name, entry in entries.items()
        }
        cache = _written(cache, entries, index)  # (B, W, L, G, K)
        keys, values = (
            ops.reshape(cache[name], (-1, *cache[name].shape[2:]))
            for name in ("key", "value")
        )
        if mask is not None:
            mask = ops.repeat(mask, width, axis=0)[:, None, None]  # (B W, 1, 1, L)
        heads, _ = self._attend(
            self._placed(self.project_query(rows), index),
            keys,
            values,
            mask=mask,
            bias=self._bias(1, ops.shape(keys)[1], index),
            causal=True,
            window=self.sliding_window,
            offset=index,
            implementation="explicit",
        )
        output = self.project_output(rows, heads)
        return ops.reshape(output, (-1, width, *output.shape[2:])), cache

    def project_memory(self, value, key=None, start=0):
        """Projects what `step_memory` attends to, once for all steps and beams.

        Args:
            value: Float tensor `(B, S, D)`.
            key: Float tensor `(B, S, D)`; `value` when None.
            start: Position of the first vector, an integer or a scalar tensor.

        Returns:
            A dict of "key" `(B, S, G, K)` and "value" `(B, S, G, V)`.
        """
        keys = self.project_key(value if key is None else key)
        return {"key": self._placed(keys, start), "value": self.project_value(value)}

    def step_memory(self, query, memory, mask=None, index=None):
        """Attends from one new position of each beam to a projected memory.

        Equals row `index` of a call of the layer on the whole sequence and memory.

        Args:
            query: Float tensor `(B, W, D)`; the beams stand on the query axis and
                share the memory.
            memory: What `project_memory` gave.
            mask: Bool tensor `(B, S)`, True = may attend.
            index: Position of the beams among the memory's, an integer or a scalar
                int32 tensor; needed with `positions` or `sliding_window`.

        Returns:
            Float tensor `(B, W, output_shape)`.

        Raises:
            ValueError: If `index` is needed and None.
        """
        queries = self.project_query(query)  # (B, W, H, K)
        mask = masks.input_masks(None, mask, None, None)  # (B, 1, S)
        if self.positions is not None or self.sliding_window is not None:
            queries = self._beams_placed(queries, index)
        # The beams stand at one position, so the kernel must not count them from 0.
        heads, _ = self._attend(
            queries,
            memory["key"],
            memory["value"],
            mask=masks.combine_masks(mask, self._window_at(memory, index)),
            bias=self._bias(1, ops.shape(memory["key"])[1], index),
            window=None,
            implementation="explicit",
        )
        return self.project_output(query, heads)

    def _beams_placed(self, queries, index):
        """Rotates the queries of beams, which all stand at `index`."""
        if index is None:
            raise ValueError(
                "`index` must be given where the layer has `positions` or "
                "`sliding_window`. Received: index=None."
            )
        rows = ops.reshape(queries, (-1, 1, *queries.shape[2:]))  # (B W, 1, H, K)
        rows = self._placed(rows, index)
        return ops.reshape(rows, (-1, *queries.shape[1:]))

    def _window_at(self, memory, index):
        """Gives which of the memory a query at `index` may see, `(1, S)`, or None."""
        if self.sliding_window is None:
            return None
        length = ops.shape(memory["key"])[1]
        return masks.window_mask(1, length, self.sliding_window, index)


def _written(cache, entries, index):
    """Writes entries `(B, W, T, G, K)` at `index` of each beam."""
    return {
        name: ops.slice_update(cache[name], (0, 0, index, 0, 0), entry)
        for name, entry in entries.items()
    }
