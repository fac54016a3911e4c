"""The attention of each token of one sentence, beside the tokens' texts."""

from typing import NamedTuple

import keras
import numpy as np

from keras_seqattn.annotations import AttentionKind, DecodingModel, TokenizerLike
from keras_seqattn.scheduling.static import pad_to_length, padded_length


class AttentionWeights(NamedTuple):
    """The attention of each token of one sentence.

    Attributes:
        source_tokens: List of S strings that were attended to, the end of the sentence
            last. In the decoder's self-attention these are the tokens that each step
            has read, the start token first.
        target_tokens: List of T strings that attended, the end last. In the decoder
            row t is the step that predicted `target_tokens[t]`.
        weights: Float32 array `(layers, heads, T, S)`. A row sums to 1.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    weights: np.ndarray

    def alignment(self) -> list[tuple[int, int]]:
        """Returns for each target token the source token with the most attention.

        The attention is averaged over all layers and heads.

        Returns:
            List of T pairs (target index, source index).

        Example:
            >>> import numpy as np
            >>> weights = np.array([[[[0.2, 0.8], [0.9, 0.1]]]], "float32")
            >>> AttentionWeights(["a", "b"], ["B", "A"], weights).alignment()
            [(0, 1), (1, 0)]
        """
        mean = self.weights.mean(axis=(0, 1))
        return [(row, int(column)) for row, column in enumerate(mean.argmax(axis=1))]


def attention_weights(
    model: DecodingModel,
    tokenizers: tuple[TokenizerLike, TokenizerLike],
    token_ids: tuple[list[int], list[int]],
    kind: AttentionKind,
) -> AttentionWeights:
    """Computes the attention of a translation model on one pair of sentences.

    `tokenizers` and `token_ids` are those of the source, whose ids end with the end
    token, and of the target, whose ids lack the end token.
    """
    source_ids, target_ids = token_ids
    # To few lengths, since JAX compiles each operation anew for a shape.
    padded = (
        pad_to_length(
            np.array([ids], "int32"), padded_length(model, len(ids)), model.pad_id
        )
        for ids in (source_ids, [model.start_id, *target_ids])
    )
    scores = model.attention_scores(*padded, kind)
    weights = keras.ops.convert_to_numpy(scores)[0]
    sources = _pieces(tokenizers[0], source_ids[:-1])
    targets = _pieces(tokenizers[1], target_ids)
    looking, seen = {
        "cross": (targets, sources),
        "encoder": (sources, sources),
        "decoder": (targets, ["<s>", *targets[:-1]]),
    }[kind]
    weights = weights[..., : len(looking), : len(seen)].copy()
    return AttentionWeights(seen, looking, weights)


def _pieces(tokenizer, ids):
    """Returns the text of each token of a sentence, and a mark for its end.

    A token that is no text of its own, such as one byte of several, is called as the
    tokenizer calls it: "<0xC3>".
    """
    texts = tokenizer.detokenize([[token] for token in ids])
    names = getattr(tokenizer, "pieces", getattr(tokenizer, "vocabulary", None))
    if isinstance(names, list | tuple):  # of a tokenizer of one's own, it may be a dict
        texts = [
            text if text and "\ufffd" not in text else names[token]
            for text, token in zip(texts, ids, strict=True)
        ]
    return [*texts, "</s>"]
