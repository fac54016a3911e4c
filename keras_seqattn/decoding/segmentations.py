"""`SegmentationEnsemble`: one model that reads several segmentations of each source.

The segmentations of a sentence are interleaved in one row: the first token of each, the
second of each, and so on. So padding stays at the end of each, however far the row is
padded.
Shapes: B sentences, S source length, M segmentations.
"""

from collections.abc import Sequence

from keras_seqattn.annotations import DecodingModel, Tensor
from keras_seqattn.decoding.ensemble import Ensemble
from keras_seqattn.decoding.hypotheses import pad_lists
from keras_seqattn.decoding.protocol import (
    default_max_length,
    length_limit,
    max_new_tokens,
)


class SegmentationEnsemble(Ensemble):
    """Averages a model's probabilities over M segmentations of each source."""

    def __init__(self, model: DecodingModel, count: int) -> None:
        super().__init__([model] * count)
        limit = length_limit(model)
        self.max_length = None if limit is None else count * limit

    @property
    def abilities(self) -> frozenset[str]:
        """Those of the model except coverage: there is no single source to cover."""
        return super().abilities - {"coverage"}

    def most_generated(self, source_length: int) -> int | None:
        """Returns how many tokens may follow a row of all segmentations.

        It is the default for their mean length, or the model's limit if that is less.
        """
        length = -(-source_length // len(self.models))
        default = default_max_length(length)
        limit = max_new_tokens(self.models[0], length)
        return default if limit is None else min(default, limit)

    def _sources(self, source_ids: Tensor) -> list[Tensor]:
        count = len(self.models)
        return [source_ids[:, number::count] for number in range(count)]


def interleave(segmentations: Sequence[list[int]], pad_id: int) -> list[int]:
    """Interleaves the segmentations of a source in one row, the shorter ones padded.

    Example:
        >>> interleave([[5, 7, 2], [6, 2]], pad_id=0)
        [5, 6, 7, 2, 2, 0]
    """
    return pad_lists(segmentations, pad_id).T.ravel().tolist()
