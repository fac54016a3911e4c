"""A check that no output position depends on a later position of an input.

Shapes: B batch, L length of the input.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.audit.passes import (
    MODES,
    AuditReport,
    Passes,
    by_position,
    differs,
    is_float,
    modes,
    padding_id,
    random_content,
)
from keras_seqattn.backend import autodiff


def check_causality(
    model: keras.layers.Layer,
    inputs: Any,
    which: str | Sequence[str] | None = "target_ids",
    *,
    vocabulary_size: int | None = None,
    pad_id: int | None = None,
    training: bool | None = None,
    num_draws: int = 3,
    tolerance: float | None = None,
    select: Callable[[Any], Any] | None = None,
    seed: int = 0,
) -> AuditReport:
    """Checks that no output position depends on a later position of an input.

    For every position c, the whole input from c on is replaced, `num_draws` times by
    random content and once by padding; the outputs before c must stay the same. For a
    float input, the gradient of the outputs before c must also be zero from c on.
    A batch norm averages over positions in training: that is a leak, and is reported.
    Shapes: B batch, L length.

    Args:
        model: A `keras.Model` or layer, called as `model(inputs, training=...)`.
        inputs: What it takes: an array, or a (nested) list or dict of arrays; ids
            `(B, L)`, floats `(B, L, ...)`. Short ones are best: each mode takes L - 1
            times `num_draws` + 1 passes.
        which: Name of the input to be checked: the key in a dict, the name in a
            functional model, else the place, such as "0"; or a list of names. None if
            there is one input.
        vocabulary_size: Number of token ids; None: that of the smallest `Embedding` of
            the model that holds the given ids.
        pad_id: The id of padding; None: the model's `pad_id`, or 0.
        training: True or False to check only that mode; None checks both.
        num_draws: Number of random replacements, a positive integer. More may find a
            leak that only few tokens show.
        tolerance: Largest relative difference that counts as equal; None: 1e-5, or 2
            units in the last place where a layer computes in 16 bits.
        select: Function from the model's output to the part that is checked; None: all
            outputs whose second axis has the length L.
        seed: Integer of at least 0 that seeds the replacements.

    Returns:
        An `AuditReport`.

    Raises:
        ValueError: If there is no such input, no vocabulary or no output of length L;
            if L is 1; if equal passes differ, so that nothing can be compared; or if no
            change of the input changes the outputs, so that no leak could be seen.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> from keras_seqattn.layers import MultiHeadAttention
        >>> x, array = keras.Input((4, 8)), np.eye(4, 8)[None]
        >>> causal = MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
        >>> check_causality(keras.Model(x, causal), array).ok
        True
        >>> report = check_causality(
        ...     keras.Model(x, MultiHeadAttention(2, 4)(x, x)), array
        ... )
        >>> report.ok, report.position
        (False, 0)
    """
    arguments.positive_integer("num_draws", num_draws)
    arguments.positive_integer("vocabulary_size", vocabulary_size, optional=True)
    arguments.integer("pad_id", pad_id, optional=True)
    arguments.boolean("training", training, optional=True)
    arguments.integer("seed", seed, 0)
    passes = Passes(model, inputs, select, tolerance)
    names = passes.names(which)
    for name in names:
        rng = np.random.default_rng(seed)
        array = passes.arrays[name]
        size = passes.vocabulary_size(name, vocabulary_size)
        others = [random_content(array, size, rng) for _ in range(num_draws)]
        pad = None if size is None else padding_id(model, pad_id)
        others.append(np.full_like(array, pad or 0))
        probes = [
            _Probe(passes, name, others, mode, rng, pad) for mode in modes(training)
        ]
        for cut in range(1, array.shape[1]):
            for probe in probes:
                if probe.leaks(cut):
                    return probe.report(cut)
        if not any(probe.visible for probe in probes):
            raise ValueError(
                f"`model` must depend on {name!r}, or no leak could be seen. Received: "
                f"model={model.name!r}, whose outputs no change of it changes."
            )
    return AuditReport(
        True,
        None,
        None,
        "No output position depends on a later position of "
        f"{' or '.join(map(repr, names))}, "
        f"{' or '.join(MODES[mode] for mode in modes(training))}.",
    )


class _Probe:
    """Looks in one mode for what crosses a cut, from later input to earlier output."""

    def __init__(self, passes, name, others, training, rng, pad):
        self.passes, self.name, self.others = passes, name, others
        self.training, self.pad = training, pad
        self.array = passes.arrays[name]
        self.outputs = passes.repeatable(training)
        self.visible = False  # whether a change of the input has changed any output
        length = self.array.shape[1]
        if length < 2:
            raise ValueError(
                f"`inputs` must hold at least 2 positions of {name!r}, or none is "
                f"later. Received: an array of shape {self.array.shape}."
            )
        self.aligned = [
            place
            for place, output in enumerate(self.outputs)
            if output.ndim > 1 and output.shape[1] == length
        ]
        if not self.aligned:
            shapes = [output.shape for output in self.outputs]
            raise ValueError(
                f"`model` must have an output of the length of {name!r}, {length}, on "
                f"its second axis. Received: outputs of shapes {shapes}."
            )
        # The gradient is that of a random sum, in which no two outputs cancel.
        self.factors = {
            place: rng.normal(size=self.outputs[place].shape).astype("float32")
            for place in self.aligned
            if is_float(self.outputs[place])
        }

    def leaks(self, cut):
        """Returns whether an output before `cut` depends on the input from `cut` on."""
        return self._changes(slice(cut, None), cut) or self._gradient_reaches(cut).any()

    def report(self, cut):
        """Reports the leak across `cut`, the first cut that has one.

        Since the previous cut has none, it reaches the position just before `cut`.
        """
        later = range(cut, self.array.shape[1])
        sources = (j for j in later if self._changes(slice(j, j + 1), cut))
        source = next(sources, None)
        if source is None:
            reached = self._gradient_reaches(cut)
            source = cut + int(reached.argmax()) if reached.any() else None
        where = f"positions from {cut} on" if source is None else f"position {source}"
        padding = "".join(map(self._describe_padding, (cut - 1, source)))
        message = (
            f"Output position {cut - 1} depends on {where} of {self.name!r}, which "
            f"comes later{padding}, {MODES[self.training]}."
        )
        return AuditReport(False, cut - 1, self.name, message)

    def _describe_padding(self, position):
        """Returns a note in brackets where a position is padding, or an empty one."""
        if position is None or self.array.dtype.kind not in "iu":
            return ""
        padded = (self.array[:, position] == self.pad).reshape(len(self.array), -1)
        rows = padded.all(axis=1)
        if not rows.any():
            return ""
        where = "" if rows.all() else f" in {rows.sum()} of {len(rows)} rows"
        return f" (position {position} is padding{where})"

    def _changes(self, span, cut):
        """Returns whether other content of `span` changes an output before `cut`.

        Also notes in `visible` whether it changes an output at all.
        """
        for other in self.others:
            changed = self.array.copy()
            changed[:, span] = other[:, span]
            outputs = self.passes(
                {**self.passes.arrays, self.name: changed}, self.training
            )
            for place in self.aligned:
                different = differs(
                    self.outputs[place], outputs[place], self.passes.tolerance
                )
                self.visible |= bool(different.any())
                if different[:, :cut].any():
                    return True
        return False

    def _gradient_reaches(self, cut):
        """Returns, for each position from `cut` on, whether the gradient is nonzero.

        Without a gradient (ids, or outputs that are no floats) it returns one False.
        """
        if not is_float(self.array) or not self.factors:
            return np.zeros(1, bool)
        earlier = {place: factor.copy() for place, factor in self.factors.items()}
        for factor in earlier.values():
            factor[:, cut:] = 0.0

        def total(x):
            outputs = self.passes.tensors(
                {**self.passes.arrays, self.name: x}, self.training
            )
            products = (
                ops.multiply(ops.cast(outputs[place], "float32"), factor)
                for place, factor in earlier.items()
            )
            return sum(map(ops.sum, products))

        gradient = autodiff.gradients(total, self.array)
        different = differs(gradient, np.zeros_like(gradient), self.passes.tolerance)
        return by_position(different)[cut:]
