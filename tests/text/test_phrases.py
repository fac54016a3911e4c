import hashlib
import subprocess
import sys

import babel
import pytest

from keras_seqattn.text import load_parallel, phrases

pytestmark = pytest.mark.backends("tensorflow")

SPLITS = ("train", "val", "test")


def load(source, target):
    return {split: load_parallel("phrases", source, target, split) for split in SPLITS}


MAIN = ("en", "de", "fr", "es")
OTHERS = [
    pytest.param(language, marks=pytest.mark.slow)
    for language in phrases.LANGUAGES
    if language not in MAIN
]


@pytest.fixture(
    scope="module",
    params=["en-de", "fr-es", pytest.param("ru-cs", marks=pytest.mark.slow)],
)
def parts(request):
    return load(*request.param.split("-"))


def test_sizes(parts):
    for sources, targets in parts.values():
        assert len(sources) == len(targets)
    assert len(parts["train"][0]) >= 20_000
    assert len(parts["val"][0]) == len(parts["test"][0]) == 1000


def test_a_source_stands_once(parts):
    sources = [line for split in SPLITS for line in parts[split][0]]
    assert len(sources) == len(set(sources))


def test_splits_share_no_text_on_either_side(parts):
    for side in (0, 1):
        train, val, test = (set(parts[split][side]) for split in SPLITS)
        assert not train & val
        assert not train & test
        assert not val & test


def test_every_held_out_word_occurs_in_training(parts):
    for side in (0, 1):
        train, val, test = (" ".join(parts[split][side]).split() for split in SPLITS)
        assert set(test) <= set(train)
        assert set(val) <= set(train)


def test_phrases_are_plain_text(parts):
    for lines in (side for part in parts.values() for side in part):
        assert not [
            line for line in lines if line != " ".join(line.split()) or not line
        ]


@pytest.mark.parametrize("language", [*MAIN, *OTHERS])
def test_every_language_has_every_phrase(language):
    lines = phrases._render_all(language)
    assert len(lines) == len(phrases._render_all("en"))
    gaps = (*phrases.UNITS, "duration-", "{")
    assert not [line for line in lines if any(gap in line for gap in gaps)]


@pytest.mark.parametrize("source", MAIN)
def test_every_pair_of_the_main_languages_is_large_enough(source):
    for target in set(MAIN) - {source}:
        splits = phrases.phrase_splits(source, target)
        assert len(splits["train"]) >= 20_000
        assert len(splits["val"]) == len(splits["test"]) == 1000


def test_translations_by_hand():
    known = {
        "Thursday, January 9, 1997": "Donnerstag, 9. Januar 1997",
        "March 2019": "März 2019",
        "9:00 PM": "21:00",
        "3.50 Swiss francs": "3,50 Schweizer Franken",
        "3.5 kilometers per hour": "3,5 Kilometer pro Stunde",
        "in 3 days": "in 3 Tagen",
        "5 weeks ago": "vor 5 Wochen",
        "Switzerland": "Schweiz",
    }
    pairs = dict(zip(phrases._render_all("en"), phrases._render_all("de"), strict=True))
    assert {source: pairs[source] for source in known} == known


FRESH = """
import hashlib, runpy, sys
splits = runpy.run_path(sys.argv[1])["phrase_splits"]("en", "de")
print(hashlib.sha256(repr(splits).encode()).hexdigest())
"""


def test_a_fresh_process_makes_the_same():
    result = subprocess.run(
        [sys.executable, "-c", FRESH, phrases.__file__],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "123"},
    )
    splits = repr(phrases.phrase_splits("en", "de")).encode()
    assert result.stdout.strip() == hashlib.sha256(splits).hexdigest()


# By Babel's version: names and formats are CLDR's of its time.
DIGESTS = {
    "2.16.0": "37216e6e7acd2023e416957efc330b09929ace261216b8170c89df773ed8840f",
    "2.18.0": "37216e6e7acd2023e416957efc330b09929ace261216b8170c89df773ed8840f",
    "2.19.0": "4b08db9a61b9961e9dc0bc5db0176afdb48e5228bd52765ca73e57fbb9feeaf0",
}


@pytest.mark.skipif(babel.__version__ not in DIGESTS, reason="other names and formats")
def test_the_lines_are_those_of_before():
    lines = [side for split in load("en", "de").values() for side in split]
    digest = hashlib.sha256("\n".join(map("\n".join, lines)).encode()).hexdigest()
    assert digest == DIGESTS[babel.__version__]


def test_callers_may_change_their_lists():
    load_parallel("phrases", "en", "de", "test")[0].clear()
    assert len(load_parallel("phrases", "en", "de", "test")[0]) == 1000


def test_without_babel_it_says_what_to_install(monkeypatch):
    phrases._render_all.cache_clear()
    phrases.phrase_splits.cache_clear()
    monkeypatch.setitem(sys.modules, "babel", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[corpora\]"'):
        load_parallel("phrases", "en", "de")
