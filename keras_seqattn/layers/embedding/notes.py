"""Notes on tensors: what one layer tells another, beside the numbers it hands on."""

import weakref


class Notes:
    """What is noted on tensors while they live, under one name.

    Args:
        name: A word for the attribute of the tensors that take attributes. There even
            a note that refers to its own tensor, as all of a TensorFlow graph does, is
            freed with it.

    Example:
        >>> import numpy as np
        >>> notes, x = Notes("example"), np.ones(3)
        >>> notes.write(x, "three ones")
        >>> notes.read(x), notes.read(np.ones(3))
        ('three ones', None)
    """

    def __init__(self, name):
        self._name = f"_keras_seqattn_{name}"
        self._others = {}  # By the id of the tensor.

    def write(self, tensor, note):
        """Notes something on a tensor, in place of what was noted before."""
        try:
            setattr(tensor, self._name, note)
        except AttributeError:  # JAX's arrays and tracers take none.
            key = id(tensor)
            reference = weakref.ref(tensor, lambda _: self._others.pop(key, None))
            self._others[key] = reference, note

    def read(self, tensor):
        """Gives what is noted on a tensor, or None."""
        reference, note = self._others.get(id(tensor), (lambda: None, None))
        if reference() is tensor:
            return note
        return getattr(tensor, self._name, None)
