"""Attention over chosen axes of inputs of any rank.

Shapes: B batch, T target length, S source length, H heads, K width of a head.
"""

import math
from collections.abc import Sequence

from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Shape, Tensor
from keras_seqattn.layers.attention.masks import bool_mask


class Folding:
    """Turns inputs of any rank and attention axes into `(B, T, H, K)`, and back.

    Axes that are attended over are folded into the length, the others into the batch.
    With rank 3 and axis 1, the common case, there is nothing to do.
    """

    def __init__(self, rank: int, axes: Sequence[int]) -> None:
        self.axes = axes
        self.batch = tuple(axis for axis in range(rank - 1) if axis not in axes)
        # Of heads `(..., H, K)`, which have one axis more than the inputs.
        self.order = (*self.batch, *axes, rank - 1, rank)
        self.trivial = rank == 3 and axes == (1,)

    def _sizes(self, x):
        """Returns the sizes of the batch axes, and of the attended ones, as lists.

        `x` is inputs or heads: these axes are the same in both.
        """
        shape = ops.shape(x)
        return [shape[a] for a in self.batch], [shape[a] for a in self.axes]

    def inputs(self, x: Tensor) -> Tensor:
        """Folds projected inputs `(..., H, K)` into `(B, L, H, K)`."""
        if self.trivial:
            return x
        batch, lengths = self._sizes(x)
        x = ops.transpose(x, self.order)
        # Not -1, which could be any size if a length is 0.
        sizes = (math.prod(batch), math.prod(lengths))
        return ops.reshape(x, (*sizes, *x.shape[-2:]))

    def output(self, x: Tensor, query: Tensor) -> Tensor:
        """Unfolds outputs `(B, T, H, V)` to `(..., H, V)`, the axes of `query`."""
        if self.trivial:
            return x
        batch, lengths = self._sizes(query)
        x = ops.reshape(x, (*batch, *lengths, *x.shape[-2:]))
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return ops.transpose(x, back)

    def scores(self, x: Tensor, query: Tensor, value: Tensor) -> Tensor:
        """Unfolds weights `(B, H, T, S)` to `(*batch, H, *target, *source)`."""
        if self.trivial:
            return x
        batch, target = self._sizes(query)
        _, source = self._sizes(value)
        return ops.reshape(x, (*batch, x.shape[1], *target, *source))

    def sequence_mask(self, name: str, mask: Tensor | None, x: Tensor) -> Tensor | None:
        """Folds the mask of an input `x` into `(B, L)`.

        The mask has all axes of `x` but the last, or only the first and those that are
        attended over; it is then the same for the rest of the batch.
        """
        mask = bool_mask(name, mask)
        if self.trivial or mask is None:
            return mask
        batch, lengths = self._sizes(x)
        missing = len(batch) + len(lengths) - len(mask.shape)
        layouts = ops.shape(x)[:-1], (*batch[:1], *lengths)
        if missing == 0:
            mask = _add_axes(name, mask, 0, 0, layouts[0], layouts)
            mask = ops.transpose(mask, (*self.batch, *self.axes))
        else:
            mask = _add_axes(name, mask, 1, missing, (*batch, *lengths), layouts)
        mask = ops.broadcast_to(mask, (*batch, *lengths))
        return ops.reshape(mask, (math.prod(batch), math.prod(lengths)))

    def pair_mask(
        self, mask: Tensor | None, query: Tensor, value: Tensor
    ) -> Tensor | None:
        """Folds an `attention_mask`, as Keras aligns it, into `(B, H, T, S)`."""
        name = "attention_mask"
        mask = bool_mask(name, mask)
        if self.trivial or mask is None:
            return mask
        batch, target = self._sizes(query)
        _, source = self._sizes(value)
        # As in Keras, the axes that are missing between the batch and the lengths are
        # those of the heads and of the folded batch.
        place = len(mask.shape) - 2 * len(self.axes)
        missing = len(batch) + 1 - place
        sizes = (*batch, None, *target, *source)  # The number of heads is not known.
        layouts = sizes, (*batch[:1], *target, *source)
        mask = _add_axes(name, mask, place, missing, sizes, layouts)
        heads = mask.shape[len(batch)]
        mask = ops.broadcast_to(mask, (*batch, heads, *target, *source))
        sizes = (math.prod(batch), heads, math.prod(target), math.prod(source))
        return ops.reshape(mask, sizes)

    def scores_shape(
        self, query_shape: Shape, value_shape: Shape, num_heads: int
    ) -> Shape:
        """Returns the shape of the unfolded weights."""
        batch = [query_shape[axis] for axis in self.batch]
        target = [query_shape[axis] for axis in self.axes]
        source = [value_shape[axis] for axis in self.axes]
        return (*batch, num_heads, *target, *source)


def _add_axes(name, mask, place, missing, sizes, layouts):
    """Adds `missing` axes of size 1 at index `place`, if the mask then fits `sizes`.

    If it does not broadcast to these, the error names the `layouts` that a mask may
    have, the one of all axes and the shortest.
    """
    shape = tuple(mask.shape)
    aligned = (*shape[:place], *[1] * missing, *shape[place:])
    fits = 0 <= place <= len(shape) and missing >= 0
    if not fits or not arguments.may_broadcast(aligned, sizes):
        full, short = (
            tuple(size if isinstance(size, int) else None for size in layout)
            for layout in layouts
        )
        raise ValueError(
            f"`{name}` must have the shape {full}, or {short} if it is the same along "
            "the axes that it leaves out; a size may be 1, and None is any size. "
            f"Received: {name}.shape={shape}."
        )
    for _ in range(missing):
        mask = ops.expand_dims(mask, place)
    return mask
