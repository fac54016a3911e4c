"""`TextGenerator`: prompts in, continuations out, whole or piece by piece."""

from collections.abc import Iterator

import numpy as np

from keras_seqattn import arguments, translator_file
from keras_seqattn.annotations import DecodingModel, Lines, TokenizerLike
from keras_seqattn.decoding.beam import with_hypotheses
from keras_seqattn.decoding.methods import (
    Greedy,
    Search,
    without_scores,
)
from keras_seqattn.decoding.protocol import SPECIAL_IDS
from keras_seqattn.scheduling.generation import decode_lists, source_limit
from keras_seqattn.scheduling.scoring import score_lists
from keras_seqattn.scheduling.streaming import stream_tokens
from keras_seqattn.text_model import (
    DECODING,
    TextModel,
    check_tokenizer,
    checked_lines,
    continuations,
    ranked_texts,
)

# Characters at the end of a text that later tokens may change. U+FFFD stands for the
# first bytes of a character; U+0010 may be the first half of the escape that the
# SentencePiece tokenizer writes for U+2581 and U+0010.
UNSETTLED = "\ufffd\x10"


class TextGenerator(TextModel):
    """Continues strings with a language model, its tokenizer and a search.

    A prompt is tokenised, begun with `model.start_id`, batched with prompts of about
    its length, and continued; continuations come in the order of the prompts, without
    the prompts. An empty prompt is allowed: the model begins a text. A prompt's tokens,
    its start and one more must fit `model.max_length`, or 1,024 if the model has no
    limit: build a model of longer texts with `max_length`.

    A program searches at most 64 prompts at once, with 131,072 tokens of prompts and
    possible continuations, whatever the model's size. Each takes memory for the keys
    and values of all layers; on a CPU, TensorFlow and JAX run a program on each core.
    For a large model, pass fewer prompts at a time.

    Args:
        model: A `LanguageModel`.
        tokenizer: The tokenizer of `keras_seqattn.text` that it was trained with.
        search: A search of `keras_seqattn.decoding`; None: `Greedy()`.

    Attributes:
        model: The model.
        tokenizer: The tokenizer.
        search: The search, or None for `Greedy()`; may be set.

    Raises:
        ValueError: If `model` is not a language model, `tokenizer` has a vocabulary of
            a different size than the model or a different start, end or padding, or
            `search` is not a search.

    Example:
        >>> from keras_seqattn.models import LanguageModel
        >>> from keras_seqattn.text import ByteTokenizer
        >>> tokenizer = ByteTokenizer()
        >>> model = LanguageModel(
        ...     tokenizer.vocabulary_size, model_dim=8, num_heads=2, num_layers=1,
        ...     intermediate_dim=16,
        ... )
        >>> generator = TextGenerator(model, tokenizer)
        >>> (text,) = generator(["Hello"], max_length=4)
        >>> "".join(generator.stream("Hello", max_length=4)) == text
        True
    """

    _file = translator_file.TextGeneratorFile

    def __init__(
        self,
        model: DecodingModel,
        tokenizer: TokenizerLike,
        search: Search | None = None,
    ) -> None:
        protocol = (*DECODING, "most_generated", "vocabulary_size", *SPECIAL_IDS)
        arguments.offers("model", model, protocol, "a language model")
        check_tokenizer("tokenizer", tokenizer, model)
        super().__init__(model, search)
        self.tokenizer = tokenizer

    def __call__(
        self,
        prompts: Lines,
        max_length: int | None = None,
        search: Search | None = None,
    ) -> list[str]:
        """Continues prompts.

        Args:
            prompts: List of strings.
            max_length: Largest number of generated tokens, end included; None: twice
                the tokens of each prompt, start included, plus 10. If the model's limit
                allows fewer, that many.
            search: Search for this call only; None: the generator's own.

        Returns:
            List of strings, the continuation of each prompt without the prompt.

        Raises:
            ValueError: If `prompts` is not a list of strings or one is too long,
                `max_length` is not a positive integer, or `search` is not a search.
        """
        search = without_scores(self._checked_search(search))
        return [best[0][0] for best in self.generate(prompts, search, 1, max_length)]

    def generate(
        self,
        prompts: Lines,
        search: Search | None = None,
        num_hypotheses: int = 1,
        max_length: int | None = None,
    ) -> list[list[tuple[str, float]]]:
        """Continues prompts, and scores the continuations.

        Args:
            prompts: List of strings.
            search: Search for this call only; None: the generator's own.
            num_hypotheses: Number of continuations of each prompt, best first; with 1,
                as many as the search's own `num_hypotheses`. If it is more than one, a
                greedy search becomes a `BeamSearch` at least as wide.
            max_length: Largest number of generated tokens, end included; None: twice
                the tokens of each prompt, start included, plus 10. If the model's limit
                allows fewer, that many.

        Returns:
            For each prompt a list of pairs `(text, score)`, best first, the texts
            without the prompt. The score is the search's: a log-probability in nats, at
            most 0, which a beam search divides by its length penalty.

        Raises:
            ValueError: If `prompts` is not a list of strings or one is too long,
                `num_hypotheses` or `max_length` is not a positive integer, or `search`
                is not a search.
        """
        prompts = checked_lines("prompts", prompts)
        arguments.positive_integer("num_hypotheses", num_hypotheses)
        arguments.positive_integer("max_length", max_length, optional=True)
        search = with_hypotheses(self._checked_search(search), num_hypotheses)
        lists = self._tokenize_with_start("prompts", prompts)
        decoded = decode_lists(self.model, lists, search, max_length=max_length)
        begun = [ids[1:] for ids in lists]
        continued = ranked_texts(decoded, self.tokenizer, len(prompts), prompts=begun)
        return [continued[index] for index in range(len(prompts))]

    def stream(
        self, prompt: str, max_length: int | None = None, search: Search | None = None
    ) -> Iterator[str]:
        """Continues a prompt, piece by piece.

        A piece holds only text that no later token changes, so the bytes of a character
        come together. Each token takes one run of a program, which is compiled once for
        each search and length.

        Args:
            prompt: String.
            max_length: Largest number of generated tokens, as in a call.
            search: A `Greedy`, or a `Sample` of one hypothesis, for this call only;
                None: the generator's own.

        Returns:
            An iterator of strings that are not empty. Joined, they equal
            `generator([prompt])[0]` for the same search and seed.

        Raises:
            ValueError: If `prompt` is not a string or too long, `max_length` is not a
                positive integer, or `search` is a `BeamSearch` or keeps more than one
                hypothesis: which of them is best is known only at the end.
        """
        arguments.text("prompt", prompt)
        arguments.positive_integer("max_length", max_length, optional=True)
        search = self._checked_search(search)
        if not isinstance(search, Greedy) or search.width > 1:
            wanted = "a `Greedy`, or a `Sample` of one hypothesis, to stream"
            arguments.refuse("search", search, wanted)
        (ids,) = self._tokenize_with_start(
            "prompt", [*arguments.strings("prompt", [prompt])]
        )
        found = stream_tokens(self.model, ids, without_scores(search), max_length)
        return _pieces(self.tokenizer, ids[1:], found)

    def score(self, lines: Lines) -> np.ndarray:
        """Returns the log-probability of texts.

        Args:
            lines: List of strings.

        Returns:
            Float32 array `(len(lines),)`: the sum over the tokens of each text, its end
            included, in nats.

        Raises:
            ValueError: If `lines` is not a list of strings, or one is too long.
        """
        lines = checked_lines("lines", lines)
        texts = [
            [*ids[1:], self.model.end_id]
            for ids in self._tokenize_with_start("lines", lines, generated=0)
        ]
        return score_lists(self.model, texts)

    def _tokenize_with_start(self, name, lines, generated=1):
        """Tokenizes lines as in training, with the start token before each.

        The model must have room for `generated` more tokens.
        """
        limit = source_limit(self.model) - generated
        lists = [[self.model.start_id, *ids] for ids in self.tokenizer.tokenize(lines)]
        for number, ids in enumerate(lists):
            where = name if name == "prompt" else f"{name}[{number}]"
            if self.model.pad_id in ids:
                raise ValueError(
                    f"`{where}` must have no token of padding, id {self.model.pad_id}, "
                    "which the model does not see. "
                    f"Received: {where}={lines[number]!r}."
                )
            if len(ids) > limit:
                raise ValueError(
                    f"`{where}` must have at most {limit - 1} tokens. "
                    f"Received: {where} of {len(ids) - 1} tokens. Build the model "
                    "with a larger `max_length`; without one it takes 1,024."
                )
        return lists


def _pieces(tokenizer, prompt, ids):
    """Yields the text that token ids add to a prompt, once later ids cannot change it.

    No piece is empty; joined, they are the text of all ids.
    """
    known, told, text = [], 0, ""
    for token in ids:
        known.append(token)
        (text,) = continuations(tokenizer, [prompt], [known])
        settled = text.rstrip(UNSETTLED)
        if len(settled) > told:
            yield settled[told:]
            told = len(settled)
    if len(text) > told:
        yield text[told:]
