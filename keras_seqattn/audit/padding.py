"""A check that neither the amount nor the content of padding changes real outputs.

Shapes: B batch, L length of an input.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.audit.passes import (
    MODES,
    OTHER_LENGTH,
    AuditReport,
    Passes,
    by_position,
    differs,
    modes,
    padding_id,
    random_content,
)
from keras_seqattn.backend.parts import layers_of


def check_padding_invariance(
    model: keras.layers.Layer,
    inputs: Any,
    which: str | Sequence[str] | None = None,
    *,
    masks: dict[str, str] | None = None,
    vocabulary_size: int | None = None,
    pad_id: int | None = None,
    extra: int = 4,
    training: bool | None = None,
    num_draws: int = 3,
    tolerance: float | None = None,
    select: Callable[[Any], Any] | None = None,
    seed: int = 0,
) -> AuditReport:
    """Checks that neither the amount nor the content of padding changes real outputs.

    Amount: `extra` positions of padding are added to an input, in each mode in which
    the model drops nothing at random. Content: what padding holds is replaced, in the
    input where `masks` marks padding, otherwise in the vectors that the model's
    `Embedding` layers return for it. Neither may change the outputs of real positions.

    An output that does not have the length of an input is compared as a whole, and must
    keep its length where `extra` is not 0. If it has positions of its own, as behind a
    convolution with strides, choose those that come from real positions alone, such as
    `select=lambda y: y[:, :real]`.
    Shapes: B batch, L length.

    Args:
        model: A `keras.Model` or layer, called as `model(inputs, training=...)`.
        inputs: What it takes: an array, or a (nested) list or dict of arrays; ids
            `(B, L)`, floats `(B, L, ...)`.
        which: Name or list of names of the inputs that have padding, as in
            `check_causality`; None: the keys of `masks`, and every other integer input
            that is not itself a mask. Any other input of the same length as one of them
            is lengthened with it.
        masks: Dict from the name of an input to that of the input `(B, L)` that marks
            its real positions by True or 1. An input that is not a key has padding
            where it holds only `pad_id`.
        vocabulary_size: Number of token ids, as in `check_causality`.
        pad_id: The id of padding; None: the model's `pad_id`, or 0.
        extra: Number of positions added. With 0, for a model of fixed length, the
            inputs must hold padding, and its amount is not checked.
        training: True or False to check only that mode; None checks both.
        num_draws: Number of random contents.
        tolerance: Largest relative difference that counts as equal; None: 1e-5, or 2
            units in the last place where a layer computes in 16 bits. Ten times that is
            allowed where the length changes.
        select: Function from the model's output to the part that is checked; None: all.
        seed: Integer of at least 0 that seeds the contents.

    Returns:
        An `AuditReport`. Its message says what was compared.

    Raises:
        ValueError: If there is no such input, no padding, no real position, or
            nothing that can be compared, or if equal passes differ.

    Example:
        >>> import numpy as np
        >>> from keras_seqattn.models import TranslationTransformer
        >>> model = TranslationTransformer(
        ...     20, model_dim=8, num_heads=2, encoder_layers=1, decoder_layers=1
        ... )
        >>> ids = np.array([[5, 7, 2], [6, 2, 0]])
        >>> inputs = {"source_ids": ids, "target_ids": ids}
        >>> check_padding_invariance(model, inputs, num_draws=1).ok
        True
    """
    wanted = "a dict from names of inputs to names of inputs"
    arguments.instance("masks", masks, dict, wanted, optional=True)
    arguments.integer("extra", extra, 0)
    arguments.positive_integer("num_draws", num_draws)
    arguments.positive_integer("vocabulary_size", vocabulary_size, optional=True)
    arguments.integer("pad_id", pad_id, optional=True)
    arguments.boolean("training", training, optional=True)
    arguments.integer("seed", seed, 0)
    passes = Passes(model, inputs, select, tolerance)
    probe = _Probe(passes, which, masks or {}, padding_id(model, pad_id), extra)
    for mode in modes(training):
        outputs = passes.repeatable(mode)
        for name in probe.names:
            rng = np.random.default_rng(seed)
            leak = probe.check_amount(name, mode, outputs) or probe.check_content(
                name, mode, num_draws, rng, vocabulary_size
            )
            if leak is not None:
                return leak
    return probe.report_success()


class _Probe:
    """Compares outputs at real positions when padding changes."""

    def __init__(self, passes, which, masks, pad_id, extra):
        self.passes, self.masks, self.pad_id, self.extra = passes, masks, pad_id, extra
        self.which = which
        for name in (*masks, *masks.values()):
            passes.check_name("masks", name)
        for name, mark in masks.items():
            shape, wanted = (passes.arrays[x].shape for x in (mark, name))
            if shape != wanted[:2]:
                raise ValueError(
                    f"`masks` must name for {name!r} an input of shape {wanted[:2]}. "
                    f"Received: {mark!r}, of shape {shape}."
                )
        self.names = self._padded_names(which)
        self.real = {name: self._mark_real(name, passes.arrays) for name in self.names}
        self.compared = []
        self._check_inputs()
        self.aligned = self._align_outputs()

    def check_amount(self, name, training, outputs):
        """Returns the report of a leak if more padding changes `outputs`, or None.

        Not checked where the model draws random numbers, whose shape would change.
        """
        if not self.extra or (training and self.passes.is_random()):
            return None
        longer = self.passes(self._lengthen(name), training)
        return self._compare("amount", name, training, outputs, longer, OTHER_LENGTH)

    def check_content(self, name, training, num_draws, rng, vocabulary_size):
        """Returns the report of a leak if other padding changes a real output, or None.

        Contents are drawn `num_draws` times. Nothing is compared where no `Embedding`
        reads the input and no mask marks its padding.
        """
        arrays = self._lengthen(name)
        array, real = arrays[name], self._mark_real(name, arrays)
        outputs = self.passes(arrays, training)
        for _ in range(num_draws):
            if name in self.masks:
                size = self.passes.vocabulary_size(name, vocabulary_size)
                kept = real.reshape(real.shape + (1,) * (array.ndim - 2))
                others = np.where(kept, array, random_content(array, size, rng))
                disturbed = self.passes({**arrays, name: others}, training)
            else:
                with _other_vectors(self.passes.model, array, ~real, rng) as found:
                    disturbed = self.passes(arrays, training)
                if not found:
                    return None
            leak = self._compare("content", name, training, outputs, disturbed, 1)
            if leak is not None:
                return leak
        return None

    def report_success(self):
        """Reports that nothing leaked, or that nothing could have been seen."""
        if not self.compared:
            raise ValueError(
                "`extra` must be positive in a mode without random drops, or `masks` "
                "given, where no `Embedding` reads the inputs: else nothing can be "
                f"compared. Received: extra={self.extra!r}, masks={self.masks!r}."
            )
        return AuditReport(
            True,
            None,
            None,
            f"No real output depends on {', '.join(dict.fromkeys(self.compared))}.",
        )

    def _padded_names(self, which):
        if which is not None:
            return self.passes.names(which)
        marks = set(self.masks.values())
        names = [
            name
            for name, array in self.passes.arrays.items()
            if name in self.masks or (array.dtype.kind in "iu" and name not in marks)
        ]
        if not names:
            raise ValueError(
                "`which` must name an input with padding, where none holds integers. "
                f"Received: which={which!r}, inputs {sorted(self.passes.arrays)}."
            )
        return names

    def _check_inputs(self):
        fixed = {
            tensor.name: tensor.shape[1]
            for tensor in getattr(self.passes.model, "inputs", None) or ()
            if tensor.shape[1] is not None
        }
        for name in self.names:
            if self.extra and name in fixed:
                raise ValueError(
                    f"`extra` must be 0 for {name!r}, whose length the model fixes at "
                    f"{fixed[name]}. Received: extra={self.extra!r}."
                )
            if not self.extra and self.real[name].all():
                raise ValueError(
                    "`inputs` must hold padding where `extra` is 0. "
                    f"Received: {name!r}, with no padding in it."
                )
            if not self.real[name].any():
                raise ValueError(
                    "`inputs` must hold a real position, or no output can be compared. "
                    f"Received: {name!r}, with nothing but padding in it."
                )

    def _mark_real(self, name, arrays):
        """Marks the real positions of an input, `(B, L)`."""
        if name in self.masks:
            return arrays[self.masks[name]].astype(bool)
        real = arrays[name] != self.pad_id
        return real.any(axis=tuple(range(2, real.ndim)))

    def _lengthen(self, *names):
        """Adds padding to inputs of one length, their masks, and others of it."""
        arrays = dict(self.passes.arrays)
        length = arrays[names[0]].shape[1]
        partners = set(arrays) - set(self.names) - set(self.masks.values())
        partners |= {self.masks.get(name) for name in names}
        for other, array in arrays.items():
            is_partner = other in partners and array.shape[1] == length
            if other in names or is_partner:
                widths = [(0, 0), (0, self.extra)] + [(0, 0)] * (array.ndim - 2)
                value = self.pad_id if other in names else 0
                arrays[other] = np.pad(array, widths, constant_values=value)
        return arrays

    def _align_outputs(self):
        """Finds for each output the inputs whose positions are its positions."""
        outputs = self.passes(self.passes.arrays, False)
        aligned = [[] for _ in outputs]
        for name in self.names:
            length = self.passes.arrays[name].shape[1]
            longer = self._pass_longer(name)
            for names, before, after in zip(aligned, outputs, longer, strict=True):
                grown = (*before.shape[:1], length + self.extra, *before.shape[2:])
                if after.shape == grown and before.shape[1] == length:
                    names.append(name)
                elif after.shape != before.shape:
                    raise ValueError(
                        "`select` must leave outputs that have the length of an input "
                        "on their second axis, or no length. Received: an output of "
                        f"shape {before.shape} which becomes {after.shape} with "
                        f"{self.extra} more positions of {name!r}."
                    )
        return aligned

    def _pass_longer(self, name):
        """Returns the outputs for more padding in an input."""
        try:
            return self.passes(self._lengthen(name), False)
        except Exception as error:  # Each backend raises an error of its own.
            length = self.passes.arrays[name].shape[1]
            alike = [x for x in self.names if self.passes.arrays[x].shape[1] == length]
            if len(alike) == 1:
                raise
            self.passes(self._lengthen(*alike), False)  # Raises what is not of lengths.
            raise ValueError(
                f"`which` must name one of {alike}, with which the others are "
                "lengthened, where the model needs them to have the same length. "
                f"Received: which={self.which!r}."
            ) from error

    def _compare(self, kind, name, training, before, after, factor):
        """Reports a difference at a real position; notes what was compared."""
        self.compared.append(f"the {kind} of padding in {name!r} {MODES[training]}")
        tolerance = self.passes.tolerance * factor
        for names, left, right in zip(self.aligned, before, after, strict=True):
            if not names:
                changed = differs(left, right, tolerance)
            else:
                real = np.logical_and.reduce([self.real[name] for name in names])
                length = real.shape[1]
                changed = differs(left[:, :length], right[:, :length], tolerance)
                changed &= real.reshape(real.shape + (1,) * (changed.ndim - 2))
            if changed.any():
                position = int(by_position(changed).argmax()) if names else None
                output = f"Output position {position}" if names else "The output"
                message = f"{output} depends on {self.compared[-1]}."
                if not names and left.ndim > 2:
                    message += (
                        " If it has positions of its own, as behind strides, `select` "
                        "those of real input: `select=lambda y: y[:, :real]`."
                    )
                return AuditReport(False, position, name, message)
        return None


@contextlib.contextmanager
def _other_vectors(model, token_ids, padding, rng):
    """Makes the `Embedding` layers that read `token_ids` return noise for padding.

    Yields a list that grows with each such call. Changing the row of the table instead
    would not do: tied logits rightly depend on it.
    """
    found = []

    def add_noise(call):
        def noisy(inputs, *args, **kwargs):
            vectors = call(inputs, *args, **kwargs)
            if tuple(inputs.shape) != token_ids.shape or not np.array_equal(
                ops.convert_to_numpy(inputs), token_ids
            ):
                return vectors
            found.append(True)
            scale = 3 * ops.std(ops.cast(vectors, "float32"))
            noise = ops.convert_to_tensor(rng.normal(size=vectors.shape), "float32")
            return ops.where(
                padding[..., None], ops.cast(scale * noise, vectors.dtype), vectors
            )

        return noisy

    layers = [
        layer for layer in layers_of(model) if isinstance(layer, keras.layers.Embedding)
    ]
    # Keras calls a quantized layer by a method of its own.
    names = ["quantized_call" if x.quantization_mode else "call" for x in layers]
    for layer, name in zip(layers, names, strict=True):
        setattr(layer, name, add_noise(getattr(layer, name)))
    try:
        yield found
    finally:
        for layer, name in zip(layers, names, strict=True):
            delattr(layer, name)
