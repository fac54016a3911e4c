"""Notes on tensors: what one layer tells another, beside the numbers it hands on."""

import weakref


class Notes:
    """What is noted on tensors while they live: JAX's tracers take no attributes.

    Example:
        >>> import numpy as np
        >>> notes, x = Notes(), np.ones(3)
        >>> notes.write(x, "three ones")
        >>> notes.read(x), notes.read(np.ones(3))
        ('three ones', None)
    """

    def __init__(self):
        self._notes = {}  # By the id of the tensor.

    def write(self, tensor, note):
        """Notes something on a tensor, in place of what was noted before."""
        key = id(tensor)
        reference = weakref.ref(tensor, lambda _: self._notes.pop(key, None))
        self._notes[key] = reference, note

    def read(self, tensor):
        """Gives what is noted on a tensor, or None."""
        reference, note = self._notes.get(id(tensor), (lambda: None, None))
        return note if reference() is tensor else None
