"""A callback that scores a model's translations while it is trained."""

from typing import Any

import keras

from keras_seqattn import arguments
from keras_seqattn.annotations import Lines, TokenizerLike
from keras_seqattn.decoding.methods import Search, checked_search, without_scores
from keras_seqattn.decoding.protocol import (
    check_parts,
    check_vocabulary,
    is_language_model,
)
from keras_seqattn.scheduling.generation import (
    decode_lists,
    forced_prefixes,
    source_limit,
)
from keras_seqattn.training.average import check_best_weights
from keras_seqattn.training.callback_states import callbacks_with


class TranslationScore(keras.callbacks.Callback):
    """Translates lines during `fit`, and logs sacreBLEU's BLEU and chrF of them.

    It needs the extra `score`. The logs get `val_bleu` and `val_chrf`, from 0 to 100,
    where larger is better. They are what `sacrebleu.corpus_bleu` (unless `bleu` is
    given) and `corpus_chrf` compute for the translations that a `Translator` of the
    same model and search returns. sacreBLEU's signatures, which published scores should
    state, are attributes. An empty line translates to "", and a line longer than the
    model's `max_length` is cut. The search runs compiled (on torch eagerly), in a few
    programs that later epochs reuse.

    Put it before the callbacks that read the logs: `EarlyStopping` and
    `ModelCheckpoint` (with `mode="max"`), `CSVLogger`, `Resume`. Put it after
    `SwapEMAWeights`: the lines are translated when the validation begins, and that
    callback has then put the moving averages of the weights into the model. Without
    `swap_on_epoch` it takes them out again before the epoch ends, so callbacks that
    keep the best weights would keep trained ones: they are an error. In an epoch
    without validation, for lack of data or by `validation_freq`, the lines are
    translated at the end of the epoch, with the weights that the model then has. So
    leave `validation_freq` at 1 to score averages: `every` counts from the first epoch,
    and `validation_freq` to the last, so that other numbers fall on different epochs.

    Args:
        sources: List of strings.
        references: List of as many strings, the reference translations.
        source_tokenizer: Tokenizer of the sources.
        target_tokenizer: Tokenizer of the translations. None: `source_tokenizer`.
        search: A search of `keras_seqattn.decoding`; None: `Greedy()`.
        every: Number of epochs from one score to the next. The first and the last
            epoch are also scored; in epochs between, the logs repeat the last score.
        lines: Most lines to translate, spaced evenly over all lines; None: all.
        bleu: A `sacrebleu.BLEU`, which computes `val_bleu`. Languages without spaces
            between words need one: `sacrebleu.BLEU(tokenize="zh")` for Chinese,
            "ja-mecab" for Japanese. None: sacreBLEU's default.

    Attributes:
        bleu_signature: sacreBLEU's signature of `val_bleu`, None before the first
            score.
        chrf_signature: sacreBLEU's signature of `val_chrf`, likewise.
        sources: The lines that are translated.
        references: Their references.
        translations: The latest translations, a list of strings.

    Raises:
        ValueError: If there are no lines, or not as many references as lines, or if
            `every` or `lines` is not a positive integer; when training begins, if the
            model does not translate, or a tokenizer's vocabulary differs in size or
            special ids from the model's, or if a callback has `restore_best_weights`,
            or `save_best_only` by a validation score, beside a `SwapEMAWeights` without
            `swap_on_epoch`.
        ImportError: When training begins, if sacreBLEU is not installed.

    Example:
        >>> from keras_seqattn.text import ByteTokenizer
        >>> score = TranslationScore(["one"], ["eins"], ByteTokenizer(), every=2)
        >>> score.set_params({"epochs": 10})
        >>> [epoch for epoch in range(10) if score.is_due(epoch)]
        [0, 2, 4, 6, 8, 9]

    Reference:
        Post 2018, Popović 2015. Differs: none.
    """

    def __init__(
        self,
        sources: Lines,
        references: Lines,
        source_tokenizer: TokenizerLike,
        target_tokenizer: TokenizerLike | None = None,
        search: Search | None = None,
        every: int = 1,
        lines: int | None = None,
        bleu: Any = None,
    ) -> None:
        super().__init__()
        wanted = "a list of strings"
        sources = arguments.sequence("sources", sources, wanted, arguments.text)
        references = arguments.sequence(
            "references", references, wanted, arguments.text
        )
        tokenizer = ("tokenize", "detokenize")
        arguments.offers("source_tokenizer", source_tokenizer, tokenizer, "a tokenizer")
        arguments.offers(
            "target_tokenizer", target_tokenizer, tokenizer, "a tokenizer", True
        )
        checked_search("search", search)
        metric = ("corpus_score", "get_signature")
        arguments.offers("bleu", bleu, metric, "a `sacrebleu.BLEU`", True)
        if not len(sources) or len(sources) != len(references):
            raise ValueError(
                "`sources` must hold lines, and `references` as many. Received: "
                f"{len(sources)} sources and {len(references)} references."
            )
        self.every = arguments.positive_integer("every", every)
        arguments.positive_integer("lines", lines, optional=True)
        count = min(lines or len(sources), len(sources))
        chosen = [i * len(sources) // count for i in range(count)]
        # As a `Translator` does, without the line breaks at the ends.
        self.sources = [sources[i].rstrip("\r\n") for i in chosen]
        self.references = [references[i] for i in chosen]
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer or source_tokenizer
        self.search, self.bleu = search, bleu
        self.translations = self.bleu_signature = self.chrf_signature = None
        self._scores, self._epoch, self._is_scored = {}, None, False

    def is_due(self, epoch: int) -> bool:
        """Returns whether an epoch, counted from 0, is to be scored."""
        arguments.integer("epoch", epoch, 0)
        last = self.params["epochs"] - 1
        return epoch % self.every == 0 or epoch == last

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Forgets earlier scores, and checks the model and the other callbacks."""
        self._check_model()
        others = callbacks_with(self)
        if any(
            isinstance(other, keras.callbacks.SwapEMAWeights)
            and not other.swap_on_epoch
            for other in others
        ):
            remedy = " Leave it out, or use `SwapEMAWeights(swap_on_epoch=True)`."
            check_best_weights(others, "SwapEMAWeights", remedy)
        # Here, so that it fails before an epoch if it is missing.
        sacrebleu = arguments.package("sacrebleu", "score")
        bleu = sacrebleu.BLEU() if self.bleu is None else self.bleu
        self._metrics = {"bleu": bleu, "chrf": sacrebleu.CHRF()}
        self._scores, self._epoch = {}, None

    def _check_model(self):
        """Raises an error, before an epoch, if the model cannot translate the lines."""
        check_parts(self.model)
        if is_language_model(self.model):
            arguments.refuse("model", self.model, "a translation model")
        for side in ("source", "target"):
            name = f"{side}_tokenizer"
            check_vocabulary(name, getattr(self, name), self.model, side)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Finds whether the epoch is to be scored."""
        due = self.is_due(epoch) or not self._scores  # A resumed run may have none.
        self._epoch, self._is_scored = epoch, not due

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Scores the model if this is the validation of an epoch to be scored."""
        if self._epoch is not None:
            self._score()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the scores to the logs."""
        self._score()
        self._epoch = None
        logs.update(self._scores)

    def _score(self):
        if self._is_scored:
            return
        self.translations = self._translate(self.model)
        for name, metric in self._metrics.items():
            score = metric.corpus_score(self.translations, [self.references])
            self._scores[f"val_{name}"] = score.score
            setattr(self, f"{name}_signature", str(metric.get_signature()))
        self._is_scored = True

    def _translate(self, model):
        """Translates the sources, as a `Translator` does."""
        limit = source_limit(model) - 1
        token_ids = [
            [*ids[:limit], model.end_id]
            for ids in self.source_tokenizer.tokenize(self.sources)
        ]
        filled = [i for i, line in enumerate(self.sources) if line.strip()]
        forced = forced_prefixes(self.target_tokenizer, len(token_ids))
        search, texts = without_scores(self.search), {}
        for batch, found in decode_lists(
            model, token_ids, search, filled, prefixes=forced
        ):
            best = [found.sequence(row) for row in range(len(batch))]
            best = self.target_tokenizer.detokenize(best)
            texts.update(zip(batch, best, strict=True))
        return [texts.get(i, "") for i in range(len(self.sources))]
