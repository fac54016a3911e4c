"""Token ids on the disk: the same batches as from memory, and nothing done twice."""

import itertools
import json
import re

import numpy as np
import pandas
import pytest

import keras_seqattn as ks
from keras_seqattn.text import (
    ByteTokenizer,
    TextLines,
    token_cache,
    translation_batches,
)
from keras_seqattn.text.datasets import EpochDataset
from keras_seqattn.text.epochs import Epoch
from keras_seqattn.text.mixing import Corpus
from tests.locks import held

pytestmark = pytest.mark.backends("torch")

SOURCES = [f"line {number} {'x' * (number % 9)}" for number in range(40)]
TARGETS = [line.upper() for line in SOURCES]
OPTIONS = {"batch_tokens": 128, "bucket_lengths": (12, 20), "seed": 3}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(token_cache, "PAIRS_IN_A_BLOCK", 7)


class Counting(ByteTokenizer):
    """Counts the lines that it tokenizes."""

    count = 0

    def tokenize(self, lines, *arguments, **options):
        """Counts them."""
        type(self).count += len(lines)
        return super().tokenize(lines, *arguments, **options)

    def get_config(self):
        """Returns no option."""
        return {}


def passes(batches, number=2):
    """Returns the arrays of some passes."""
    flat = []
    for _ in range(number):
        for inputs, labels in batches:
            flat += [*inputs.values(), labels]
    return [np.asarray(array) for array in flat]


def assert_same(batches, others):
    np.testing.assert_equal(passes(batches), passes(others))
    for name in ("shapes", "skipped", "target_tokens"):
        assert getattr(batches, name) == getattr(others, name)


@pytest.mark.filterwarnings("ignore:.* pairs are left out")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": False},
        {"repeat_batch": 2, "cutoff": 0.3, "rows_multiple": 2},
        {"bidirectional_epochs": 1},
        {"bucket_lengths": (12,)},
    ],
    ids=str,
)
def test_batches_are_those_of_the_corpus_in_memory(options, tmp_path):
    arguments = SOURCES, TARGETS, ByteTokenizer()
    options = OPTIONS | options
    expected = translation_batches(*arguments, **options)
    for _ in range(2):  # written, then opened
        cached = translation_batches(*arguments, **options, cache=tmp_path)
        assert_same(cached, translation_batches(*arguments, **options))
    assert len(cached) == len(expected)


def test_several_corpora_of_files(tmp_path):
    path = tmp_path / "pairs.tsv"
    rows = (f"{pair[0]}\t{pair[1]}\n" for pair in zip(SOURCES, TARGETS, strict=True))
    path.write_text("".join(rows), "utf-8")
    files = [TextLines(path, column=column) for column in (0, 1)]
    corpora = [
        {"<a>": lines, "<b>": few}
        for lines, few in zip(files, (SOURCES[:3], TARGETS[:3]), strict=True)
    ]
    options = OPTIONS | {"temperature": 3.0, "bucket_lengths": (12, 24)}
    in_memory = [{tag: list(lines) for tag, lines in side.items()} for side in corpora]
    assert_same(
        translation_batches(*corpora, ByteTokenizer(), **options, cache=tmp_path / "c"),
        translation_batches(*in_memory, ByteTokenizer(), **options),
    )


class Reversed(ByteTokenizer):
    """Has other ids for the same text."""

    def tokenize(self, lines, *arguments, **options):
        """Returns the ids from the last."""
        rows = super().tokenize(lines, *arguments, **options)
        return [row[::-1] for row in rows]


@pytest.mark.parametrize(
    ("sources", "targets", "tokenizers"),
    [
        ({"<en>": SOURCES}, {"<en>": SOURCES}, [ByteTokenizer()]),
        (SOURCES, SOURCES, [ByteTokenizer(), Reversed()]),
        (
            {"<de>": SOURCES, "<en>": SOURCES},
            {"<de>": TARGETS, "<en>": SOURCES},
            [ByteTokenizer()],
        ),
    ],
    ids=["a tag", "two tokenizers", "beside translations"],
)
def test_targets_that_are_the_sources(sources, targets, tokenizers, tmp_path):
    options = OPTIONS | {"bucket_lengths": (12, 32)}
    assert_same(
        translation_batches(sources, targets, *tokenizers, **options, cache=tmp_path),
        translation_batches(sources, targets, *tokenizers, **options),
    )


@pytest.mark.parametrize("kind", [np.array, pandas.Series])
def test_columns_of_a_table_are_lists(kind, tmp_path):
    columns = kind(SOURCES), kind(TARGETS), ByteTokenizer()
    cached = translation_batches(*columns, **OPTIONS, cache=tmp_path)
    lists = SOURCES, TARGETS, ByteTokenizer()  # whose cache is the same
    assert_same(cached, translation_batches(*lists, **OPTIONS, cache=tmp_path))


def test_ids_beyond_two_bytes(tmp_path):
    class Wide(ByteTokenizer):
        vocabulary_size = 100_000

        def tokenize(self, lines, *arguments):
            """Returns large ids."""
            rows = super().tokenize(lines, *arguments)
            return [[token + 99_000 for token in row] for row in rows]

    arguments = SOURCES, TARGETS, Wide(), ByteTokenizer()
    cached = translation_batches(*arguments, **OPTIONS, cache=tmp_path)
    assert_same(cached, translation_batches(*arguments, **OPTIONS))
    assert max(array.max() for array in passes(cached)) > 2**16


def test_ids_of_a_tokenizer_that_does_not_tell_its_size(tmp_path):
    class Unsized:
        start_id, end_id, pad_id = 1, 2, 0

        def tokenize(self, lines):
            """Returns ids that two bytes do not hold."""
            return [[byte + 70_000 for byte in line.encode()] for line in lines]

    arguments = SOURCES, TARGETS, Unsized()
    cached = translation_batches(*arguments, **OPTIONS, cache=tmp_path)
    assert_same(cached, translation_batches(*arguments, **OPTIONS))


def test_sides_that_are_swapped_stay_on_the_disk(tmp_path):
    corpora, tokenizers = [Corpus(SOURCES, TARGETS)], [ByteTokenizer()] * 2
    (source, target), _ = token_cache.cached_sides(tmp_path, corpora, tokenizers)
    swapped = source.where(np.arange(len(SOURCES)) % 2 == 0, target)
    assert swapped.ids is source.ids


def test_nothing_is_tokenized_again(tmp_path):
    tokenizer, Counting.count = Counting(), 0
    for batch_tokens in (128, 256):
        translation_batches(
            SOURCES, TARGETS, tokenizer, batch_tokens=batch_tokens, cache=tmp_path
        )
    assert Counting.count == 2 * len(SOURCES)


@pytest.mark.parametrize("left", [b"half a block", b""], ids=str)
def test_it_goes_on_after_a_stop(tmp_path, monkeypatch, left):
    tokenizer, Counting.count = Counting(), 0
    append = token_cache.Journal.append
    done = itertools.count()

    def stop(journal, *arguments):
        if next(done) == 3:
            journal.path.open("ab").write(left)
            raise KeyboardInterrupt
        append(journal, *arguments)

    monkeypatch.setattr(token_cache.Journal, "append", stop)
    with pytest.raises(KeyboardInterrupt):
        translation_batches(SOURCES, TARGETS, tokenizer, **OPTIONS, cache=tmp_path)
    monkeypatch.undo()
    assert Counting.count == 4 * 7 * 2
    cached = translation_batches(SOURCES, TARGETS, tokenizer, **OPTIONS, cache=tmp_path)
    assert Counting.count == (len(SOURCES) + 7) * 2
    assert_same(cached, translation_batches(SOURCES, TARGETS, tokenizer, **OPTIONS))


def test_another_corpus_or_tokenizer_is_refused(tmp_path):
    cache = tmp_path / "cache"
    translation_batches(SOURCES, TARGETS, ByteTokenizer(), cache=cache)
    with pytest.raises(ValueError, match="`cache` must be new.*with other corpora"):
        translation_batches(SOURCES[1:], TARGETS[1:], ByteTokenizer(), cache=cache)
    for corpora in ((SOURCES, TARGETS[::-1]), ({"<a>": SOURCES}, {"<a>": TARGETS})):
        with pytest.raises(ValueError, match="`cache` must be new.*with other corpora"):
            translation_batches(*corpora, ByteTokenizer(), cache=cache)
    with pytest.raises(ValueError, match="`cache` must be new.*with other tokenizers"):
        translation_batches(SOURCES, TARGETS, Counting(), cache=cache)
    assert translation_batches(SOURCES, TARGETS, ByteTokenizer(), cache=cache)


def test_a_tokenizer_without_a_configuration_is_known_by_its_ids(tmp_path):
    class Shifted:
        pad_id, start_id = 0, 1

        def __init__(self, shift, vocabulary_size=300, end_id=2):
            self.shift, self.end_id = shift, end_id
            self.vocabulary_size = vocabulary_size

        def tokenize(self, lines, sampling=0.0):
            """Returns bytes, shifted."""
            return [[byte + self.shift for byte in line.encode()] for line in lines]

    def cached(shift, **sizes):
        tokenizer = Shifted(shift, **sizes)
        return translation_batches(
            SOURCES, TARGETS, tokenizer, **OPTIONS, cache=tmp_path
        )

    assert_same(cached(3), cached(3))
    message = "`cache` must be new.*with other tokenizers"
    # Two bytes do not hold the ids of the larger vocabulary.
    for shift, sizes in ((4, {}), (3, {"vocabulary_size": 70_000}), (3, {"end_id": 1})):
        with pytest.raises(ValueError, match=message):
            cached(shift, **sizes)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((SOURCES, TARGETS), {"sampling": 0.1}, "`sampling` must be 0 with a `cache`"),
        ((SOURCES, iter(TARGETS)), {}, "`targets` must be a list or `TextLines`"),
        ((SOURCES, TARGETS[1:]), {}, "as many lines as `sources`, 40. .* with 39"),
        ((SOURCES[1:], TARGETS), {}, "as many lines as `sources`, 39. .* with 40"),
        ((SOURCES, [*TARGETS[:-1], 3]), {}, r"`targets` .*Received: targets\[39\]=3"),
        (([], []), {}, r"`sources` must hold lines. Received: sources=\[\]"),
        ((SOURCES, TARGETS), {"cache": 3}, "Received: cache=3"),
    ],
)
def test_bad_input(arguments, options, message, tmp_path):
    options = {"cache": tmp_path} | options
    with pytest.raises(ValueError, match=message):
        translation_batches(*arguments, ByteTokenizer(), **options)


@pytest.mark.parametrize("damage", [slice(0), slice(-8), slice(8, None)], ids=str)
def test_a_damaged_file_is_said_to_be(damage, tmp_path):
    arguments = SOURCES, TARGETS, ByteTokenizer()
    translation_batches(*arguments, cache=tmp_path)
    path = tmp_path / "tokens"
    path.write_bytes(path.read_bytes()[damage])
    with pytest.raises(ValueError, match="`cache` must be whole, of .*Received"):
        translation_batches(*arguments, cache=tmp_path)


@pytest.mark.parametrize(
    ("at", "number", "dtype"), [(8, 3, "int64"), (16, -1, "int64"), (24, -14, "int32")]
)
def test_a_block_that_leads_back_is_damaged(at, number, dtype, tmp_path):
    """Such a block could be read again and again."""
    arguments = SOURCES, TARGETS, ByteTokenizer()
    translation_batches(*arguments, cache=tmp_path)
    path = tmp_path / "tokens"
    changed = bytearray(path.read_bytes())
    changed[at : at + np.dtype(dtype).itemsize] = np.array([number], dtype).tobytes()
    path.write_bytes(changed)
    with pytest.raises(ValueError, match="a block of it is damaged"):
        translation_batches(*arguments, cache=tmp_path)


def test_a_bad_line_is_told_before_any_line_is_tokenized(tmp_path):
    path, cache = tmp_path / "lines.txt", tmp_path / "cache"
    path.write_bytes(b"a\n" * 200 + b"\xff\n")
    lines, tokenizer, Counting.count = TextLines(path), Counting(), 0
    with pytest.raises(ValueError, match="must be UTF-8.*line 201"):
        translation_batches(lines, lines, tokenizer, cache=cache)
    assert Counting.count == 0
    path.write_bytes(b"a\n" * 201)  # The same folder serves once it is corrected.
    translation_batches(lines, lines, tokenizer, cache=cache)
    assert Counting.count == 201


@pytest.mark.parametrize(("targets", "unit"), [(SOURCES, "text"), (TARGETS, "pair")])
def test_the_progress_counts_what_there_is(targets, unit, tmp_path, capsys):
    translation_batches(SOURCES, targets, ByteTokenizer(), cache=tmp_path)
    units = re.findall(r"s/([a-z]+(?: read)?)", capsys.readouterr().out)
    assert set(units) == {unit, f"{unit} read"}


def test_a_cache_that_is_being_written_is_refused(tmp_path):
    calls = {
        "pairs": lambda cache: translation_batches(
            SOURCES, TARGETS, ByteTokenizer(), cache=cache
        ),
        "lines": lambda cache: ks.text.language_batches(
            SOURCES, ByteTokenizer(), cache=cache
        ),
    }
    message = "`cache` must be unused by .*Received: cache=.*tokens', .*other"
    for name, call in calls.items():
        (tmp_path / name).mkdir()
        lock = tmp_path / name / "tokens.lock"
        with held(lock), pytest.raises(ValueError, match=message):
            call(tmp_path / name)
        call(tmp_path / name)
        with held(lock):  # it is complete now, and only read
            call(tmp_path / name)


def test_a_cache_that_two_processes_wrote_at_once_is_refused(tmp_path):
    """As they may on a file system without locks: each block is there twice."""
    arguments = SOURCES, TARGETS, ByteTokenizer()
    translation_batches(*arguments, cache=tmp_path)
    path, progress = (tmp_path / name for name in ("tokens", "tokens.progress"))
    end = path.read_bytes()[-24:]
    path.write_bytes(path.read_bytes()[:-24] + path.read_bytes()[:-24] + end)
    stored = json.loads(progress.read_text("utf-8"))
    stored["bytes"] = path.stat().st_size
    progress.write_text(json.dumps(stored), "utf-8")
    with pytest.raises(ValueError, match="delete its folder.*holds 80 pairs, not 40"):
        translation_batches(*arguments, cache=tmp_path)


def test_no_batch_is_made_of_what_a_resumed_epoch_has_behind(tmp_path, monkeypatch):
    batches = translation_batches(
        SOURCES, TARGETS, ByteTokenizer(), **OPTIONS, cache=tmp_path
    )
    expected = passes(batches, 3)
    again = translation_batches(
        SOURCES, TARGETS, ByteTokenizer(), **OPTIONS, cache=tmp_path
    )
    made, batch = [], Epoch.batch

    def count(epoch, index):
        made.append((epoch.number, index))
        return batch(epoch, index)

    monkeypatch.setattr(Epoch, "batch", count)
    again.pass_over(1, batches=2)
    found = passes(again, 2)
    steps = len(batches)
    assert made == [(1, i) for i in range(2, steps)] + [(2, i) for i in range(steps)]
    arrays = 3 * steps
    for one, other in zip(
        expected[arrays + 6 :], found[6:], strict=True
    ):  # 2 batches of 3 arrays
        np.testing.assert_array_equal(one, other)


def test_batches_without_tensorflow_are_passed_over_too(monkeypatch):
    from keras_seqattn.text.batching import plan_epochs
    from keras_seqattn.text.copies import Copies

    epochs, _ = plan_epochs(
        [Corpus(SOURCES, TARGETS)],
        [ByteTokenizer()] * 2,
        Copies(),
        **OPTIONS,
        shuffle=True,
        rows_multiple=1,
    )
    whole, resumed = EpochDataset(epochs), EpochDataset(epochs)
    whole.pass_over(2)
    resumed.pass_over(2, batches=1)
    second = whole[1][1]
    made, batch = [], Epoch.batch
    monkeypatch.setattr(Epoch, "batch", lambda *given: made.append(1) or batch(*given))
    for index in (0, 2, 1):  # What is behind is the first batch after it, made once.
        expected = second if index < 2 else whole[index][1]
        np.testing.assert_array_equal(resumed[index][1], expected)
    assert len(made) == 3  # among them the one of `whole`
    # What `fit` looks at before its first epoch is no pass.
    for dataset in (resumed, whole):
        dataset.on_epoch_end()
        np.testing.assert_array_equal(dataset[1][1], second)
        for index in range(len(dataset)):
            dataset[index]
        dataset.on_epoch_end()
    np.testing.assert_array_equal(resumed[0][1], whole[0][1])


def test_texts_of_a_language_model_are_kept_once(tmp_path):
    corpus = ks.text.language_batches(SOURCES, ByteTokenizer(), **OPTIONS)
    cached = ks.text.language_batches(
        SOURCES, ByteTokenizer(), **OPTIONS, cache=tmp_path
    )
    for batch, other in zip(corpus, cached, strict=True):
        for one, two in zip(batch, other, strict=True):
            np.testing.assert_array_equal(one, two)
    bytes_of_ids = 2 * sum(len(line) + 1 for line in SOURCES)
    assert (tmp_path / "tokens").stat().st_size < 1.3 * bytes_of_ids + 500


def test_line_breaks_within_lines_are_told_from_those_between(tmp_path):
    ks.text.language_batches(["a\nb", "c"], ByteTokenizer(), cache=tmp_path)
    with pytest.raises(ValueError, match="with other corpora"):
        ks.text.language_batches(["a", "b", "c"], ByteTokenizer(), cache=tmp_path)
