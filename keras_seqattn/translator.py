"""`Translator`: strings in, strings out, and one file that holds all it takes."""

import warnings
from typing import NamedTuple

import keras
import numpy as np

from keras_seqattn import decoding

# Lines searched together: enough to fill the processor, few enough that lines of
# about one length meet, since a batch takes as long as its longest line.
LINES_AT_ONCE = 64


class AttentionWeights(NamedTuple):
    """Where each target token of one translation looked.

    Attributes:
        source_tokens: List of S strings, the end of the sentence last.
        target_tokens: List of T strings, likewise.
        weights: Float32 array `(layers, heads, T, S)`: row t is the attention of the
            step that predicted `target_tokens[t]`. A row sums to 1.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    weights: np.ndarray


class Translator:
    """Translates strings with a model, its tokenizers and a search.

    A line is tokenised, ended with `model.end_id`, batched with lines of about its
    length, searched, and detokenised; translations come in the order of the lines. A
    line that is empty or holds only whitespace translates to "". A line of more
    tokens than `model.max_length` is cut there, with one warning that counts all such
    lines.

    Args:
        model: A `keras.Model` with the decoding protocol (`encode`, `initial_state`,
            `step`), such as `TranslationTransformer`.
        source_tokenizer: A tokenizer of `keras_seqattn.text`, that the model was
            trained with.
        target_tokenizer: The target's tokenizer; None: the source's serves both.
        search: A search of `keras_seqattn.decoding`; None: `Greedy()`.

    Raises:
        ValueError: If a tokenizer's vocabulary has not the size of the model's.

    Example:
    >>> from keras_seqattn.models import TranslationTransformer
    >>> from keras_seqattn.text import ByteTokenizer
    >>> tokenizer = ByteTokenizer()
    >>> model = TranslationTransformer(
    ...     tokenizer.vocabulary_size, model_dim=8, num_heads=2, encoder_layers=1,
    ...     decoder_layers=1, intermediate_dim=16, max_length=8,
    ... )
    >>> translator = Translator(model, tokenizer)
    >>> len(translator(["Hello", ""]))
    2
    """

    def __init__(self, model, source_tokenizer, target_tokenizer=None, search=None):
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer or source_tokenizer
        self.search = search
        for side in ("source", "target"):
            tokenizer = getattr(self, f"{side}_tokenizer")
            size = getattr(model, f"{side}_vocabulary_size")
            if tokenizer.vocabulary_size != size:
                raise ValueError(
                    f"`{side}_tokenizer` must be the one the model was trained with, "
                    f"of {size} entries. Received: {side}_tokenizer.vocabulary_size="
                    f"{tokenizer.vocabulary_size}."
                )

    def __call__(self, lines, search=None, verbose=False):
        """Translates lines.

        Args:
            lines: List of strings.
            search: Search for this call alone; None: the translator's own.
            verbose: Whether to show a progress bar.

        Returns:
            List of strings, one for each line.

        Raises:
            ValueError: If `lines` is not a list of strings.
        """
        hypotheses = self.translate(lines, search=search, verbose=verbose)
        return [best[0][0] for best in hypotheses]

    def translate(self, lines, search=None, verbose=False):
        """Translates lines, and scores the translations.

        Args:
            lines: List of strings.
            search: Search for this call alone; None: the translator's own.
            verbose: Whether to show a progress bar.

        Returns:
            For each line a list of pairs `(text, score)`, best first; the score is
            the search's, a log-probability (a number of nats, at most 0). An empty
            line gives `[("", 0.0)]`.

        Raises:
            ValueError: If `lines` is not a list of strings.
        """
        if not isinstance(lines, list | tuple):
            raise ValueError(
                "`lines` must be a list of strings; pass one line as [line]. "
                f"Received: lines={lines!r}."
            )
        sources = self._source_ids(lines)
        filled = [index for index, line in enumerate(lines) if line.strip()]
        filled.sort(key=lambda index: len(sources[index]))
        progress = (
            keras.utils.Progbar(len(filled), unit_name="line") if verbose else None
        )
        translations = [[("", 0.0)] for _ in lines]
        for first in range(0, len(filled), LINES_AT_ONCE):
            batch = filled[first : first + LINES_AT_ONCE]
            found = self._search([sources[index] for index in batch], search)
            for index, translation in zip(batch, found, strict=True):
                translations[index] = translation
            if progress:
                progress.add(len(batch))
        return translations

    def attention(self, source, target=None):
        """Returns the cross-attention of every decoder layer and head on one line.

        Args:
            source: String.
            target: Its translation; None: the translator's own.

        Returns:
            An `AttentionWeights` named tuple, as `plotting.attention_map` draws it.

        Raises:
            ValueError: If `source` or `target` is not a string.
        """
        (source_ids,) = self._source_ids([source])
        inputs = np.array([source_ids], "int32")
        if target is None:
            found = decoding.generate(self.model, inputs, self.search)
            target_ids = found.token_ids[0, 0, : found.lengths[0, 0]].tolist()
        else:
            (target_ids,) = self.target_tokenizer.tokenize([target])
        scores = self.model.cross_attention_scores(
            inputs, np.array([[self.model.start_id, *target_ids]], "int32")
        )
        return AttentionWeights(
            _pieces(self.source_tokenizer, source_ids[:-1]),
            _pieces(self.target_tokenizer, target_ids),
            keras.ops.convert_to_numpy(scores)[0],
        )

    def save(self, path):
        """Writes model, tokenizers and search to one file.

        The optimizer stays behind: its state would make the file three times as large.

        Args:
            path: Path of the file, that ends in ".keras".

        Raises:
            ValueError: If `path` does not end in ".keras".
        """
        target = self.target_tokenizer
        parts = _TranslatorFile(
            self.model,
            self.source_tokenizer,
            None if target is self.source_tokenizer else target,
            self.search,
        )
        optimizer = getattr(self.model, "optimizer", None)
        try:
            self.model.optimizer = None
            parts.save(path)
        finally:
            self.model.optimizer = optimizer

    @classmethod
    def load(cls, path):
        """Reads a translator that `save` wrote.

        Args:
            path: Path of the file.

        Returns:
            A `Translator`.

        Raises:
            ValueError: If there is no such file, or it holds something else.
        """
        import keras_seqattn.text  # noqa: F401, registers the tokenizers

        parts = keras.saving.load_model(path)
        if not isinstance(parts, _TranslatorFile):
            raise ValueError(
                "`path` must be a file that `Translator.save` wrote. "
                f"Received: path={str(path)!r}, which holds a {type(parts).__name__}."
            )
        return cls(
            parts.model, parts.source_tokenizer, parts.target_tokenizer, parts.search
        )

    def _source_ids(self, lines):
        """Tokenises lines as the encoder was trained to read them."""
        sources = self.source_tokenizer.tokenize(lines)
        limit = self.model.max_length or float("inf")
        too_long = [index for index, ids in enumerate(sources) if len(ids) >= limit]
        for index in too_long:
            sources[index] = sources[index][: limit - 1]
        if too_long:
            warnings.warn(
                f"{len(too_long)} of {len(lines)} lines are longer than the model's "
                f"max_length={limit} tokens, the end's included, and were cut there. "
                f"The first is lines[{too_long[0]}].",
                stacklevel=3,
            )
        return [[*ids, self.model.end_id] for ids in sources]

    def _search(self, sources, search):
        """Searches one batch; returns for each source its pairs (text, score)."""
        source_ids = np.full(
            (len(sources), max(map(len, sources))), self.model.pad_id, "int32"
        )
        for row, ids in zip(source_ids, sources, strict=True):
            row[: len(ids)] = ids
        found = decoding.generate(self.model, source_ids, search or self.search)
        batch, count = found.scores.shape
        texts = self.target_tokenizer.detokenize(
            [
                found.token_ids[index][: found.lengths[index]].tolist()
                for index in np.ndindex(batch, count)
            ]
        )
        pairs = list(zip(texts, found.scores.ravel().tolist(), strict=True))
        return [pairs[row * count : (row + 1) * count] for row in range(batch)]


@keras.saving.register_keras_serializable(
    package="keras_seqattn", name="TranslatorFile"
)
class _TranslatorFile(keras.Model):
    """What a translator's file holds, as the one object that Keras saves and loads."""

    def __init__(
        self, model, source_tokenizer, target_tokenizer=None, search=None, **kwargs
    ):
        super().__init__(**kwargs)
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.search = search
        self.built = True

    def call(self, inputs):
        return self.model(inputs)

    def get_config(self):
        parts = ("model", "source_tokenizer", "target_tokenizer", "search")
        config = {
            part: keras.saving.serialize_keras_object(getattr(self, part))
            for part in parts
        }
        config["model"].pop("compile_config", None)
        return {"name": self.name, **config}

    @classmethod
    def from_config(cls, config):
        return cls(
            **{
                name: keras.saving.deserialize_keras_object(value)
                for name, value in config.items()
            }
        )


def _pieces(tokenizer, ids):
    """Returns the text of each token of a sentence, and a sign for its end."""
    return [*tokenizer.detokenize([[token] for token in ids]), "</s>"]
