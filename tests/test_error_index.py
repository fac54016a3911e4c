"""The index of errors says what the code says."""

import inspect
import re

import pytest

import keras_seqattn as ks
from docs.tools import error_index
from keras_seqattn import arguments

pytestmark = pytest.mark.backends("torch")

OPTIONS = {
    "choice": [{"choices": ("a", "b")}, {"choices": ("a",), "optional": True}],
    "index": [{}, {"least": 0}],
    "instance": [{"types": str, "wanted": "a string"}],
    "integer": [{}, {"least": 1}, {"least": 0}, {"least": 2, "most": 5}, {"most": 5}],
    "interpreted": [{"interpret": int, "wanted": "an integer"}],
    "number": [
        {},
        {"least": 0},
        {"above": 0, "optional": True},
        {"above": 0.0, "most": 1.0},
        {"least": 0, "below": 1},
    ],
    "offers": [{"attributes": ("split",), "wanted": "a string"}],
    "ordered": [{"wanted": "a list"}],
    "refuse": [{"wanted": "something"}, {"wanted": "something", "optional": True}],
    "sequence": [{"wanted": "a list of lengths"}],
    "keras_object": [{}],
}


def wrong(check):
    return [object()] if check == "strings" else object()


@pytest.mark.parametrize("check", error_index._WANTED)
def test_a_requirement_has_the_words_of_the_check(check):
    function = getattr(arguments, check)
    names = tuple(inspect.signature(function).parameters)
    assert error_index._SIGNATURES[check] == names
    name = "use_activation" if check == "keras_object" else "argument"
    for options in OPTIONS.get(check, [{}]):
        with pytest.raises(ValueError) as caught:
            # A generator checks as it is read.
            list(function(name, wrong(check), **options))
        said = str(caught.value)
        wanted = error_index._WANTED[check](name=name, **options)
        assert re.search(rf"must (?:be|hold) {re.escape(wanted)}\. Received", said)


def wrong_calls():
    layer = ks.layers.MultiHeadAttention
    return {
        "layers": [
            lambda: layer(0, 8),
            lambda: layer(2, 8, dropout=1.0),
            lambda: layer(2, 8, score="cosine"),
            lambda: ks.layers.window_mask(3, 3, window=0),
            lambda: ks.layers.Residual(3),
        ],
        "decoding": [
            lambda: ks.decoding.BeamSearch(width=0),
            lambda: ks.decoding.BeamSearch(width=2, num_hypotheses=3),
            lambda: ks.decoding.Sample(top_p=2.0),
        ],
        "training": [
            lambda: ks.training.InverseSquareRoot(peak=0, warmup_steps=1),
            lambda: ks.training.MaskedCrossentropy(normalize_by=-1),
        ],
    }


@pytest.mark.parametrize("part", wrong_calls())
def test_messages_that_are_raised_are_in_the_index(part):
    found = [error_index.Reader(path) for path in error_index.parts()[part]]
    for call in wrong_calls()[part]:
        with pytest.raises(ValueError) as caught:
            call()
        said = str(caught.value)
        assert any(
            said.startswith(f"`{one.argument}` must be {one.wanted}. Received")
            for reader in found
            for one in reader.requirements
        ) or any(
            re.fullmatch(pattern(one.text), said)
            for reader in found
            for one in reader.messages
        ), said


def pattern(text):
    """Makes of a message with gaps an expression that any of it matches."""
    pieces = re.split(r"\{[^}]*\}|…", text)
    return ".*".join(map(re.escape, pieces))


def test_hardly_a_message_is_left_out():
    readers = [error_index.Reader(p) for m in error_index.parts().values() for p in m]
    assert sum(len(reader.messages) for reader in readers) > 100
    assert sum(len(reader.requirements) for reader in readers) > 250
    assert sum(len(reader.unread) for reader in readers) <= 5


def test_a_loop_names_the_arguments_that_it_checks(tmp_path, monkeypatch):
    monkeypatch.setattr(error_index, "PACKAGE", tmp_path)
    source = tmp_path / "tuning.py"
    source.write_text(
        "def tune(a, b):\n"
        "    for name, value in (('a', a), ('b', b)):\n"
        "        arguments.positive_integer(name, value, optional=True)\n"
        "    if a > b:\n"
        "        raise ValueError(f'`a` must be {b}. ' f'Received: a={a + 1!r}')\n"
    )
    reader = error_index.Reader(source)
    assert reader.requirements == [
        ("a", "a positive integer or None", "tune"),
        ("b", "a positive integer or None", "tune"),
    ]
    assert reader.messages == [("ValueError", "`a` must be {b}. Received: a=…", "tune")]
