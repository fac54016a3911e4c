"""`Translator`: strings in, strings out, and one file that holds all of it."""

import functools
import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_seqattn import arguments, decoding, search_tuning, translator_file
from keras_seqattn.annotations import (
    AttentionKind,
    DecodingModel,
    ExportFormat,
    Glossary,
    Lines,
    Path,
    TokenizerLike,
)
from keras_seqattn.decoding.beam import with_beams, with_hypotheses
from keras_seqattn.decoding.constrained import with_constraints
from keras_seqattn.decoding.methods import Search, without_scores
from keras_seqattn.decoding.protocol import (
    SPECIAL_IDS,
    default_max_length,
    length_limit,
)
from keras_seqattn.decoding.quality import (
    CorpusMetric,
    Utility,
    corpus_metric,
    sentence_utility,
)
from keras_seqattn.decoding.reranking import distinct_texts, minimum_bayes_risk
from keras_seqattn.decoding.segmentations import SegmentationEnsemble, interleave
from keras_seqattn.scheduling.generation import (
    constraint_limits,
    decode_lists,
    forced_prefixes,
    source_limit,
)
from keras_seqattn.scheduling.scoring import score_lists
from keras_seqattn.sentence_attention import AttentionWeights, attention_weights
from keras_seqattn.terminology import Terms, continuing_ids
from keras_seqattn.text_model import (
    DECODING,
    TextModel,
    check_tokenizer,
    checked_lines,
    ranked_texts,
)

# Arguments of methods that hold sources; other lines are translations.
SOURCES = ("lines", "sources", "source")
# Lines that `stream` holds at once: enough to batch lines of similar length.
LINES_IN_A_BLOCK = 4096


class Translator(TextModel):
    """Translates strings with a model, its tokenizers and a search.

    A line is tokenised, ended with `model.end_id`, batched with lines of about its
    length, searched, and detokenised; translations come in the order of the lines. A
    line that is empty or holds only whitespace translates to "", and the line break
    at the end of a line does not count. A line of more than `max_source_length` tokens
    is cut there; one warning counts all such lines. Fewer lines are searched at once if
    they are long. So memory is bounded, whatever the lines contain.

    Args:
        model: A `keras.Model` with the decoding protocol (`encode`, `initial_state`,
            `step`), `source_vocabulary_size` and `target_vocabulary_size`, such as
            `TranslationTransformer`.
        source_tokenizer: The tokenizer of `keras_seqattn.text` that the model was
            trained with.
        target_tokenizer: The target's tokenizer; None: the source's serves both.
        search: A search of `keras_seqattn.decoding`; None: `Greedy()`.
        max_source_length: Largest number of tokens of a line, its end included, at
            least 2 and at most `model.max_length`; None: that limit, or 1,024 if the
            model has none. A translation has at most twice as many tokens as its line,
            plus 10, and at most `model.max_length`.

    Attributes:
        model: The model, which `compile` and `fit` train further.
        source_tokenizer: The source's tokenizer.
        target_tokenizer: The target's tokenizer.
        search: The search, or None for `Greedy()`; may be set.
        max_source_length: Largest number of tokens of a line, as given or found.

    Raises:
        ValueError: If a tokenizer's vocabulary differs in size from the model's, or its
            end, its padding or the target's start from the model's; if `search` is not
            a search; or if `max_source_length` is out of range.

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

    _file = translator_file.TranslatorFile

    def __init__(
        self,
        model: DecodingModel,
        source_tokenizer: TokenizerLike,
        target_tokenizer: TokenizerLike | None = None,
        search: Search | None = None,
        max_source_length: int | None = None,
    ) -> None:
        sizes = ("source_vocabulary_size", "target_vocabulary_size")
        protocol = (*DECODING, *SPECIAL_IDS, *sizes)
        arguments.offers("model", model, protocol, "a translation model")
        check_tokenizer("source_tokenizer", source_tokenizer, model, "source")
        if target_tokenizer is None:
            target_tokenizer = source_tokenizer
        check_tokenizer("target_tokenizer", target_tokenizer, model, "target")
        super().__init__(model, search)
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self._ensembles: dict[int, SegmentationEnsemble] = {}
        self._latest_terms: Terms | None = None  # whose phrases are tokenized already
        self.max_source_length: int = arguments.integer(
            "max_source_length",
            max_source_length,
            2,
            length_limit(model),
            optional=True,
        ) or source_limit(model)

    @property
    def max_target_length(self) -> int:
        """Most tokens of a translation, its end included; longer ones are cut."""
        own = length_limit(self.model)
        return own or default_max_length(self.max_source_length)

    def __call__(
        self, lines: Lines, search: Search | None = None, verbose: bool = False
    ) -> list[str]:
        """Translates lines.

        Args:
            lines: List of strings.
            search: Search for this call only; None: the translator's own.
            verbose: Whether to show a progress bar.

        Returns:
            List of strings, one for each line.

        Raises:
            ValueError: If `lines` is not a list of strings, or `search` not a search.
        """
        search = without_scores(self._checked_search(search))
        hypotheses = self.translate(lines, search=search, verbose=verbose)
        return [best[0][0] for best in hypotheses]

    def translate(
        self,
        lines: Lines,
        search: Search | None = None,
        num_hypotheses: int = 1,
        prefix: Lines | None = None,
        verbose: bool = False,
        segmentations: int = 1,
        sampling: float = 0.1,
        seed: int = 0,
        constraints: Sequence[Sequence[str | tuple[str, ...]]] | None = None,
        glossary: Glossary | None = None,
        distinct: bool = False,
    ) -> list[list[tuple[str, float]]]:
        """Translates lines, and scores the translations.

        Args:
            lines: List of strings.
            search: Search for this call only; None: the translator's own.
            num_hypotheses: Number of translations of each line, best first; with 1, as
                many as the search's own `num_hypotheses`. If it is more than one, a
                greedy search becomes a `BeamSearch` at least as wide.
            prefix: List of strings that the translations are to begin with, one for
                each line ("" leaves a line free), or None.
            verbose: Whether to show a progress bar.
            segmentations: Number of segmentations of each line that the model reads:
                the tokenizer's own, and others drawn at random. Their probabilities are
                averaged at each step, as in an `Ensemble` of the model with itself. The
                search takes that many times as long, and must have no
                `coverage_penalty` if there are several.
            sampling: Strength of the subword sampling that draws segmentations, as in
                the tokenizer's `tokenize`.
            seed: Integer of at least 0 that seeds the draws, which are the same for the
                same lines in the same order.
            constraints: For each line a list of phrases that its translations must
                contain, at any place, as whole words; a tuple of phrases stands for
                any one of them. Or None. If given, a greedy search becomes a
                `BeamSearch` for all lines, and a `Sample` is refused.
            glossary: Dict of source phrases to target phrases, or to tuples of
                alternative ones; or the path of a file with one pair a line, separated
                by a tab; or None. The translations of a line that contains a source
                phrase, as whole words and in the same case, must contain its target
                phrase. Phrases that do not fit the limit of a translation are left out,
                with a warning. The search is as with `constraints`.
            distinct: Whether the translations of a line must be different texts, since
                several sequences of tokens can make the same one. Twice as many are
                searched for; a line may still have too few different ones.

        Returns:
            For each line a list of pairs `(text, score)`, best first. The score is the
            search's: a log-probability in nats, at most 0, which a beam search divides
            by its length penalty, and to which it adds coverage if it has a
            `coverage_penalty`. An empty line gives `[("", 0.0)]`. A line for which no
            translation meets the constraints gives `[("", -inf)]`, with a warning.

        Raises:
            ValueError: If `lines` or `prefix` is not a list of strings, or they differ
                in length; if a prefix is longer than its line's translation may be; if
                `search` or `num_hypotheses` is not as above; if the tokenizer cannot
                draw segmentations; if `constraints` or `glossary` are not as above, or
                contain words that the tokenizer does not know; or if `constraints` do
                not fit the limit of a translation.
        """
        lines = _checked_lines("lines", lines)
        if prefix is not None:
            prefix = _checked_lines("prefix", prefix, lines=lines)
        arguments.positive_integer("num_hypotheses", num_hypotheses)
        arguments.boolean("distinct", distinct)
        search = self._checked_search(search)
        # As many as the caller asks for, or the search's own number.
        wanted = search.num_hypotheses if num_hypotheses == 1 else num_hypotheses
        if distinct and wanted > 1:
            num_hypotheses = 2 * wanted
        search = with_hypotheses(search, num_hypotheses)
        arguments.boolean("verbose", verbose)
        arguments.positive_integer("segmentations", segmentations)
        arguments.number("sampling", sampling, above=0.0)
        arguments.integer("seed", seed, 0)
        if segmentations > 1 and search.needs_coverage:
            raise ValueError(
                "`search` must have a `coverage_penalty` of 0 with several "
                "segmentations, whose attention is to different tokens. "
                f"Received: search={search!r}, segmentations={segmentations!r}."
            )
        terms = None
        if constraints is not None or glossary is not None:
            terms = self._terms(search, glossary)
        sources, *drawn = self._segmentations(lines, segmentations, sampling, seed)
        found = self._translate(
            lines, sources, search, terms, constraints, prefix, drawn, verbose
        )
        if distinct:
            found = [[*distinct_texts(pairs).items()][:wanted] for pairs in found]
        return found

    def _terms(self, search, glossary):
        """Returns what finds the constraints of lines for a search."""
        with_constraints(search)  # refuses a search that cannot meet constraints
        self._latest_terms = Terms(
            self.target_tokenizer,
            glossary,
            search.stop_ids,
            self._continuing_ids,
            before=self._latest_terms,
        )
        return self._latest_terms

    def _segmentation_ensemble(self, count):
        """Returns the ensemble for `count` segmentations of a line, made only once."""
        ensemble = self._ensembles.get(count)
        if ensemble is None or ensemble.models[0] is not self.model:
            ensemble = self._ensembles[count] = SegmentationEnsemble(self.model, count)
        return ensemble

    def _segmentations(self, lines, count, sampling, seed):
        """Tokenizes sources in `count` ways: as always, then by random draws."""
        tokenize = self.source_tokenizer.tokenize
        draws = [{"sampling": sampling, "seed": seed + i} for i in range(count - 1)]
        try:
            if draws:
                tokenize([], **draws[0])
        except (TypeError, ValueError) as error:  # It may not take the arguments.
            raise ValueError(
                "`segmentations` must be 1 where the source's tokenizer cannot draw "
                f"any. Received: segmentations={count!r}. {error}"
            ) from error
        ways = [tokenize(lines), *(tokenize(lines, **draw) for draw in draws)]
        return self._cut("lines", ways)

    def _as_read(self, lines, sources):
        """Returns lines, of those that are cut what is left of their tokens."""
        limit = self.max_source_length
        longest = [i for i, ids in enumerate(sources) if len(ids) >= limit]
        # With its end, a line of `limit - 1` tokens is as long, and whole.
        whole = self.source_tokenizer.tokenize([lines[i] for i in longest])
        cut = [i for i, x in zip(longest, whole, strict=True) if len(x) >= limit]
        texts = self.source_tokenizer.detokenize([sources[i][:-1] for i in cut])
        parts = dict(zip(cut, texts, strict=True))
        return [parts.get(i, line) for i, line in enumerate(lines)]

    def _translate(
        self,
        lines,
        sources,
        search,
        terms,
        constraints=None,
        prefix=None,
        drawn=(),
        verbose=False,
        first=0,
    ):
        """Translates lines that are checked, as `translate` does.

        `sources` has the token ids of each, and `drawn` those of each further
        segmentation. `terms` is None if there are neither `constraints` nor a glossary.
        `first` is the number of the first line among all that the caller passed.
        """
        model, inputs = self.model, sources
        if drawn:
            model = self._segmentation_ensemble(1 + len(drawn))
            rows = zip(sources, *drawn, strict=True)
            inputs = [interleave(row, model.pad_id) for row in rows]
        if prefix is None:
            forced = forced_prefixes(self.target_tokenizer, len(lines))
        else:
            forced = self.target_tokenizer.tokenize(prefix)
        rows = [[]] * len(lines)
        if terms is not None:
            room = constraint_limits(model, inputs, forced)
            read = self._as_read(lines, sources)
            rows = terms.rows(lines, constraints, prefix, room, read, first)
            # Lines without constraints get beams too: a call searches all lines alike.
            search = with_beams(search)
        filled = [index for index, line in enumerate(lines) if line.strip()]
        options = {"prefixes": forced, "first": first}
        decoded = self._decode(model, inputs, search, filled, rows, options)
        texts = ranked_texts(decoded, self.target_tokenizer, len(filled), verbose)
        unmet = [i for i in filled if rows[i] and texts[i][0][1] == -math.inf]
        if unmet:
            warnings.warn(
                f"{len(unmet)} of {len(lines)} lines have no translation, since none "
                "was found that meets their constraints. "
                f"The first is lines[{first + unmet[0]}].",
                stacklevel=3,
            )
        return [texts.get(index, [("", 0.0)]) for index in range(len(lines))]

    def _decode(self, model, sources, search, filled, rows, options):
        """Decodes the lines that have constraints, then those without any."""
        free = [index for index in filled if not rows[index]]
        bound = [index for index in filled if rows[index]]
        if bound:  # First, since it refuses what is too long.
            constrained = with_constraints(search, self._continuing_ids)
            yield from decode_lists(
                model, sources, constrained, bound, constraints=rows, **options
            )
        yield from decode_lists(model, sources, search, free, **options)

    @functools.cached_property
    def _continuing_ids(self):
        return continuing_ids(self.target_tokenizer)

    def stream(
        self,
        lines: Iterable[str],
        search: Search | None = None,
        verbose: bool = False,
        glossary: Glossary | None = None,
    ) -> Iterator[str]:
        """Translates lines one after another, however many there are.

        It holds a few thousand lines at a time, which it sorts by length, so memory
        does not grow with their number.

        Args:
            lines: Iterable of strings that has an order, such as an open file.
            search: Search for this call only; None: the translator's own.
            verbose: Whether to show the number of lines so far.
            glossary: As in `translate`; a `Sample` is refused with it.

        Returns:
            An iterator of strings, one for each line, in their order. Errors and
            warnings number the lines from the first of all, which is 0.

        Raises:
            ValueError: If `lines` is a string or has no order, or `search` or
                `glossary` is not as above. The iterator raises one if something in
                `lines` is not a string.
        """
        wanted = "a list of strings, an open file or a generator of them"
        arguments.ordered("lines", lines, wanted)
        search = without_scores(self._checked_search(search))
        arguments.boolean("verbose", verbose)
        terms = None if glossary is None else self._terms(search, glossary)
        return self._stream(iter(lines), search, verbose, terms)

    def _stream(self, lines, search, verbose, terms):
        progress = keras.utils.Progbar(None, verbose=verbose, unit_name="line")
        first = 0
        while block := list(itertools.islice(lines, LINES_IN_A_BLOCK)):
            block = _checked_lines("lines", block, first=first)
            sources = self._tokenize("lines", block, first)
            found = self._translate(block, sources, search, terms, first=first)
            progress.add(len(block))
            yield from (best[0][0] for best in found)
            first += len(block)
        progress.update(first, finalize=True)  # ends the bar's line

    def score(
        self, sources: Lines, targets: Lines, verbose: bool = False
    ) -> np.ndarray:
        """Returns the log-probability of given translations.

        Args:
            sources: List of strings.
            targets: List of as many strings, their translations.
            verbose: Whether to show a progress bar.

        Returns:
            Float32 array `(len(sources),)`: the sum over the tokens of each target, its
            end included, in nats. As in a search, the tokenizer's `prefix_ids` are
            given and do not count. A source of more than `max_source_length` tokens, or
            a target of more than `max_target_length`, is cut there, with a warning.

        Raises:
            ValueError: If these are not lists of strings of one length.
        """
        sources = _checked_lines("sources", sources)
        targets = _checked_lines("targets", targets, sources=sources)
        arguments.boolean("verbose", verbose)
        source_ids = self._tokenize("sources", sources)
        target_ids = self._tokenize("targets", targets)
        progress = keras.utils.Progbar(len(sources), verbose=verbose, unit_name="pair")
        return score_lists(
            self.model,
            source_ids,
            target_ids,
            num_forced=len(getattr(self.target_tokenizer, "prefix_ids", ())),
            on_batch=progress.add,
        )

    def minimum_bayes_risk(
        self,
        lines: Lines,
        search: Search | None = None,
        num_candidates: int = 32,
        utility: Utility = "chrf",
        verbose: bool = False,
    ) -> list[str]:
        """Translates each line by its candidate of the highest expected utility.

        Args:
            lines: List of strings.
            search: The search that finds the candidates; None: a `Sample` of seed 0
                which draws tokens at least 0.02 times as probable as the best one.
            num_candidates: Number of candidates for each line.
            utility: "chrf", "bleu", or a function of a hypothesis and a reference, as
                in `decoding.minimum_bayes_risk`, which this calls.
            verbose: Whether to show progress bars, of the search and of the choice.

        Returns:
            List of strings, one for each line.

        Raises:
            ValueError: If an argument is not as above.
            ImportError: If `utility` is "chrf" or "bleu", and sacreBLEU, of the extra
                `score`, is not installed.
        """
        if search is None:
            search = decoding.Sample(min_p=0.02, seed=0)
        arguments.positive_integer("num_candidates", num_candidates)
        sentence_utility(utility)
        found = self.translate(lines, search, num_candidates, verbose=verbose)
        return [best[0][0] for best in minimum_bayes_risk(found, utility, verbose)]

    def tune_search(
        self,
        sources: Lines,
        references: Lines,
        widths: Sequence[int] = (1, 4, 5, 8),
        length_penalties: Sequence[float] = (0.6, 0.8, 1.0, 1.2, 1.4),
        metric: CorpusMetric = "bleu",
        search: decoding.BeamSearch | None = None,
        verbose: bool = False,
    ) -> search_tuning.TunedSearch:
        """Chooses the beam search that translates held-out lines best.

        The lines are searched once for each width: the length penalty does not decide
        which beams stay, so one search finds the results of all penalties. The
        translator keeps its own search; set `translator.search` to use the one found.

        Args:
            sources: List of strings that the model was not trained on.
            references: List of as many strings, their translations.
            widths: List of numbers of beams.
            length_penalties: List of exponents, at least 0.
            metric: "bleu" or "chrf", sacreBLEU's score of a corpus, from 0 to 100; or a
                function of translations and references, two lists of strings, that
                returns a number, the larger the better.
            search: A `BeamSearch` with one group of beams and the options that all
                searches share, such as `penalty="gnmt"`; None: the translator's own if
                it is a `BeamSearch`, else `BeamSearch()`.
            verbose: Whether to show progress bars, and to print each score.

        Returns:
            A `TunedSearch`: `search`, the best `BeamSearch`, and `table`, a list of the
            `(width, length_penalty, score)` of all searches.

        Raises:
            ValueError: If an argument is not as above, or there are no lines.
            ImportError: If `metric` is "bleu" or "chrf", and sacreBLEU, of the extra
                `score`, is not installed.
        """
        sources = _checked_lines("sources", sources)
        references = _checked_lines("references", references, sources=sources)
        if not sources:
            arguments.refuse("sources", sources, "a list of at least one line")
        if search is None and isinstance(self.search, decoding.BeamSearch):
            search = self.search
        wanted = "a `BeamSearch`"
        arguments.instance("search", search, decoding.BeamSearch, wanted, True)
        arguments.boolean("verbose", verbose)
        return search_tuning.tune(
            functools.partial(self.translate, sources, verbose=verbose),
            references,
            search_tuning.checked_values("widths", widths),
            search_tuning.checked_values("length_penalties", length_penalties),
            corpus_metric(metric),
            search or decoding.BeamSearch(),
            verbose,
        )

    def attention(
        self, source: str, target: str | None = None, kind: AttentionKind = "cross"
    ) -> AttentionWeights:
        """Returns the attention of every layer and head on one line.

        Args:
            source: String.
            target: Its translation; None: the translator's own.
            kind: "cross": of target tokens on source tokens; "encoder": of source
                tokens on each other; "decoder": of target tokens on earlier ones. A
                recurrent model has only "cross".

        Returns:
            An `AttentionWeights` named tuple, which `plotting.attention_map` can draw.

        Raises:
            ValueError: If `source` or `target` is not a string, or the model has no
                attention of that kind, or is an ensemble.
        """
        wanted = "a single model, with attention to show"
        arguments.offers("model", self.model, ("attention_scores",), wanted)
        kinds = getattr(self.model, "attention_kinds", ("cross", "encoder", "decoder"))
        arguments.choice("kind", kind, kinds)
        arguments.text("source", source)
        arguments.text("target", target, optional=True)
        (source_ids,) = self._tokenize("source", _checked_lines("source", [source]))
        if target is None and not source.strip():
            target_ids = []  # An empty line is not searched.
        elif target is None:
            forced = forced_prefixes(self.target_tokenizer, 1)
            found = decoding.generate(
                self.model,
                np.array([source_ids], "int32"),
                without_scores(self.search),
                prefix=forced,
            )
            # The start token, which the model reads too, counts in its limit.
            limit = length_limit(self.model)
            target_ids = found.sequence(0)[: None if limit is None else limit - 1]
        else:
            (ended,) = self._tokenize("target", _checked_lines("target", [target]))
            target_ids = ended[:-1]
        return attention_weights(
            self.model,
            (self.source_tokenizer, self.target_tokenizer),
            (source_ids, target_ids),
            kind,
        )

    def compile_report(self) -> decoding.CompileReport:
        """Counts what was compiled for this translator's searches.

        Returns:
            A `decoding.CompileReport`: the number of programs, and the seconds that
            their first calls took.
        """
        reports = map(decoding.compile_report, (self.model, *self._ensembles.values()))
        return decoding.CompileReport(*map(sum, zip(*reports, strict=True)))

    def export(
        self, path: Path, format: ExportFormat = "saved_model", **options: Any
    ) -> None:
        """Writes the translator for an engine that runs it without this library.

        `keras_seqattn.export` describes how each format is loaded.

        "saved_model", on the TensorFlow backend: model, tokenizers and search as one
        TensorFlow SavedModel, from strings to strings. Options: `batch_size` (16),
        number of lines searched together; `max_length`, number of tokens at which a
        source is cut, by default the translator's `max_source_length`;
        `jit_compile` (False), whether XLA compiles the searches when they first run,
        which makes them several times faster where the server has it.

        "ctranslate2": a folder for the CTranslate2 engine: a `TranslationTransformer`
        and its tokenizers' vocabularies, without the search. Options: `quantization`
        (None): "float32", "int8", "int8_float32", "int16" or "float16"; `max_length`,
        number of positions if they are added to the embedding, by default the model's
        own limit or, if it has none, twice 1,024 plus 10, or twice `max_source_length`
        plus 10 if that is more.

        "onnx", on the TensorFlow backend: the model alone, from token ids to logits.
        Option: `opset_version`, by default the converter's own.

        Args:
            path: Folder; for "onnx" a file that ends in ".onnx".
            format: "saved_model", "ctranslate2" or "onnx".
            **options: Those of the format, as above, and for every format `overwrite`
                (False): whether to replace what is at `path`; `verbose` (False):
                whether to print what is being done.

        Raises:
            ValueError: If the format is none of these, an option is unknown or out of
                range, `path` exists already, or the format cannot hold this translator.
                Nothing is written then.
            ImportError: If a package that the format needs is missing.
        """
        from keras_seqattn.export import export_translator

        export_translator(self, path, format, **options)

    def _tokenize(self, name, lines, first=0):
        """Tokenizes lines as in training, cut and ended as `_cut` does."""
        is_source = name in SOURCES
        tokenizer = self.source_tokenizer if is_source else self.target_tokenizer
        (token_ids,) = self._cut(name, [tokenizer.tokenize(lines)], first)
        return token_ids

    def _cut(self, name, ways, first=0):
        """Cuts lines that are too long, and puts the end token after each.

        `ways` are their token ids, once for each segmentation. `name`, the argument's,
        tells whether the lines are sources. `first` is the number of the first line
        among all that the caller passed.
        """
        limit = self.max_source_length
        own_limit = length_limit(self.model)
        what = f"max_source_length={limit} tokens"
        if name not in SOURCES:
            limit = self.max_target_length
            what = f"the {limit} tokens of a translation ({what})"
        if limit == own_limit:
            what = f"the model's max_length={limit} tokens"
        lengths = [max(map(len, each)) for each in zip(*ways, strict=True)]
        too_long = [index for index, length in enumerate(lengths) if length >= limit]
        if too_long:
            warnings.warn(
                f"{len(too_long)} of {len(lengths)} lines are longer than {what}, "
                "the end's included, and were cut there. "
                f"The first is {name}[{first + too_long[0]}].",
                stacklevel=4,
            )
        end_id = self.model.end_id
        return [[[*ids[: limit - 1], end_id] for ids in way] for way in ways]


def _checked_lines(name, given, first=0, **partner):
    """Returns a list of strings without the line breaks at their ends.

    `first` is the number of the first line among all that the caller passed. `partner`,
    if given, is a list that must have as many lines, by the name of its argument.
    """
    lines = checked_lines(name, given, first)
    for other, its in partner.items():
        if len(lines) != len(its):
            raise ValueError(
                f"`{name}` must have as many lines as `{other}`, {len(its)}. "
                f"Received: {name} of {len(lines)} lines."
            )
    return [line.rstrip("\r\n") for line in lines]
