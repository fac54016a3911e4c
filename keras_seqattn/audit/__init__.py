"""Checks of a model: that no position sees a later one, and that padding is inert.

Any Keras model can be audited, in inference and in training, and is left exactly as it
was: weights, seeds, moving statistics and metrics.

Two outputs count as different if they are further apart than `tolerance` times the
larger one, or times the typical one (the median) if that is larger. What a correct
model computes for one position is the same number whatever the later positions hold,
since a masked weight is exactly zero. So the default is small: 1e-5, or 2 units in the
last place where a layer computes in 16 bits. It allows for kernels that add in a
different order. They do so when a length changes, as with added padding, where ten
times the tolerance is allowed.
"""

from keras_seqattn.audit.causality import check_causality
from keras_seqattn.audit.padding import check_padding_invariance
from keras_seqattn.audit.passes import AuditReport

__all__ = ["AuditReport", "check_causality", "check_padding_invariance"]
