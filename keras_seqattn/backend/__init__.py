"""What the backend of Keras does and Keras has no public name for."""

from typing import Any, TypeAlias

# A tensor of the active backend or a `keras.KerasTensor`; of one that is converted, an
# array too.
Tensor: TypeAlias = Any
