"""`Copies`: in what the copies of a pair, which stand side by side in a batch, differ.

Shapes: R rows of a batch, L its length.
"""

import dataclasses

import numpy as np

from keras_seqattn import arguments


@dataclasses.dataclass(frozen=True)
class Copies:
    """The copies of each pair: how many, and what is done to all but the first.

    Attributes:
        number: Number of copies, rows side by side.
        cutoff: Share of the tokens of the others' inputs that are cut off.

    Raises:
        ValueError: If a number is out of range, or there is no copy to cut.

    Example:
        >>> copies = Copies(2, cutoff=0.9)
        >>> rng, ids = np.random.default_rng(1), np.array([[1, 7, 8, 0]] * 2)
        >>> copies.cut(ids, (0, 1, 2), 3, rng).tolist()
        [[1, 7, 8, 0], [1, 3, 3, 0]]
    """

    number: int = 1
    cutoff: float = 0.0

    def __post_init__(self):
        """Checks the attributes, by the names that `translation_batches` has."""
        arguments.positive_integer("repeat_batch", self.number)
        arguments.fraction("cutoff", self.cutoff)
        if self.cutoff and self.number == 1:
            arguments.refuse(
                "cutoff", self.cutoff, "0 without a second copy, `repeat_batch=2`"
            )

    def cut(self, ids, special_ids, cut_id, rng):
        """Puts an id in the place of some tokens, of all copies but the first.

        Args:
            ids: Int array `(R, L)` of an input, the copies of a pair side by side.
            special_ids: Ids that are never cut off.
            cut_id: The id that stands for a token that is.
            rng: NumPy's generator, of which one number is drawn for each token.

        Returns:
            Int array `(R, L)`.
        """
        is_other = np.arange(len(ids))[:, None] % self.number > 0
        is_cut = rng.random(ids.shape) < self.cutoff
        is_cut &= is_other & ~np.isin(ids, special_ids)
        return np.where(is_cut, np.asarray(cut_id, ids.dtype), ids)
