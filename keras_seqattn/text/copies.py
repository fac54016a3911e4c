"""`Copies`: how the copies of a pair, side by side in a batch, differ.

Shapes: B pairs of a batch, R its rows (B times the copies), L its length.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_seqattn import arguments


@dataclasses.dataclass(frozen=True)
class Copies:
    """The copies of each pair: their number, segmentation and token cutoff.

    `views` is "plain" or "sampled" for each copy, None where all have the same
    segmentation. `cutoff` is the share of input tokens that all copies except the first
    lose.

    Example:
        >>> copies = Copies(2, cutoff=0.9)
        >>> rng, ids = np.random.default_rng(1), np.array([[1, 7, 8, 0]] * 2)
        >>> copies.cut(ids, (0, 1, 2), 3, rng).tolist()
        [[1, 7, 8, 0], [1, 3, 3, 0]]
    """

    number: int = 1
    sampling: float = 0.0
    views: tuple[str, ...] | None = None
    cutoff: float = 0.0

    def __post_init__(self) -> None:
        """Checks the attributes; errors use `translation_batches`' argument names."""
        arguments.positive_integer("repeat_batch", self.number)
        arguments.number("sampling", self.sampling, least=0)
        self._check_views()
        arguments.fraction("cutoff", self.cutoff)
        if self.cutoff and self.number == 1:
            arguments.refuse(
                "cutoff", self.cutoff, "0 without a second copy, `repeat_batch=2`"
            )

    def _check_views(self):
        wanted = f"'plain' or 'sampled' for each copy, {self.number} in all"
        views = arguments.sequence("views", self.views, wanted, _view, optional=True)
        if views is None:
            return
        object.__setattr__(self, "views", tuple(views))
        if len(views) != self.number:
            arguments.refuse("views", self.views, wanted, optional=True)
        if ("sampled" in views) != (self.sampling > 0):
            wanted = "'sampled' where there is `sampling`, and without it all 'plain',"
            arguments.refuse("views", self.views, wanted, optional=True)

    @property
    def segmentations(self) -> tuple[str, ...]:
        """The segmentations that each pair needs: one for each copy, or one for all."""
        return self.views or ("sampled" if self.sampling else "plain",)

    def side_by_side(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Interleaves the rows `(B, L)` of each of `segmentations` to `(R, L)`."""
        copies = [*arrays] * (self.number // len(arrays))
        return np.stack(copies, axis=1).reshape(-1, copies[0].shape[1])

    def cut(
        self,
        ids: np.ndarray,
        special_ids: Sequence[int],
        cut_id: int,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Replaces random tokens `(R, L)` by `cut_id`, except in the first copies.

        One random number is drawn for each token. Tokens in `special_ids` stay.
        """
        is_other = np.arange(len(ids))[:, None] % self.number > 0
        is_cut = rng.random(ids.shape) < self.cutoff
        is_cut &= is_other & ~np.isin(ids, special_ids)
        return np.where(is_cut, np.asarray(cut_id, ids.dtype), ids)


def _view(name, value):
    return arguments.choice(name, value, ("plain", "sampled"))
