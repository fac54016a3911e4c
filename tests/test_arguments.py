"""The checks of arguments: what passes is plain Python, what does not says why."""

import fractions
import functools

import numpy as np
import pytest

from keras_seqattn import arguments

pytestmark = pytest.mark.backends("torch")

REFUSED = [
    (arguments.integer, {}, 1.5, "an integer"),
    (arguments.integer, {}, True, "an integer"),
    (arguments.integer, {}, np.array([1, 2]), "an integer"),
    (arguments.integer, {"least": 0}, -1, "an integer of at least 0"),
    (arguments.integer, {"least": 0, "most": 3}, 4, r"an integer in \[0, 3\]"),
    (arguments.positive_integer, {}, 0, "a positive integer"),
    (arguments.positive_integer, {}, None, "a positive integer"),
    (arguments.positive_integer, {"optional": True}, "8", "integer or None"),
    (arguments.number, {}, float("nan"), "a finite number"),
    (arguments.number, {}, "1", "a finite number"),
    (arguments.number, {}, False, "a finite number"),
    (arguments.number, {}, 10**400, "a finite number"),
    (arguments.number, {"above": 0}, 0.0, r"a number in \(0, inf\)"),
    (arguments.number, {"least": 0}, float("inf"), r"a number in \[0, inf\)"),
    (arguments.number, {"most": 1}, 2, r"a number in \(-inf, 1\]"),
    (arguments.fraction, {}, 1.0, r"in \[0, 1\)"),
    (arguments.fraction, {}, None, r"in \[0, 1\)"),
    (arguments.boolean, {}, 1, "True or False"),
    (arguments.boolean, {"optional": True}, "yes", "True or False or None"),
    (arguments.choice, {"choices": ("a", "b")}, "c", r"one of \('a', 'b'\)"),
    (arguments.choice, {"choices": (1, 2)}, np.array([1, 2]), r"one of \(1, 2\)"),
    (arguments.choice, {"choices": (1, 2)}, True, r"one of \(1, 2\)"),
    (arguments.instance, {"types": str, "wanted": "a string"}, 3, "a string"),
]


@pytest.mark.parametrize("check, options, value, wanted", REFUSED)
def test_what_is_refused_is_named_with_what_it_must_be(check, options, value, wanted):
    with pytest.raises(
        ValueError, match=f"^`size` must be .*{wanted}.*Received: size="
    ):
        check("size", value, **options)


@pytest.mark.backends("torch")
def test_sizes_are_equal_also_where_the_compiler_knows_them_as_symbols():
    import torch

    @functools.partial(torch.compile, backend="eager")
    def compare(x, y, size):
        return arguments.may_be(x.shape[0], y.reshape(size, -1).shape[0]), x + 1

    for size in (16, 12):  # The second one is compiled for all sizes.
        fits, _ = compare(torch.ones(size), torch.ones(2 * size), size)
        assert fits


def test_numbers_of_numpy_become_pythons():
    assert type(arguments.integer("size", np.int64(3))) is int
    assert type(arguments.number("rate", np.float32(0.5))) is float
    assert arguments.boolean("gated", np.True_) is True


def test_a_fraction_becomes_a_float():
    for check in (arguments.number, arguments.fraction):
        value = check("x", fractions.Fraction(1, 4))
        assert value == 0.25 and type(value) is float
    assert type(arguments.number("x", 2)) is int


@pytest.mark.parametrize(
    "check", [arguments.integer, arguments.number, arguments.boolean]
)
def test_none_passes_where_it_is_allowed(check):
    assert check("size", None, optional=True) is None


def test_a_missing_package_is_named_with_its_extra():
    with pytest.raises(
        ImportError, match=r'needs the package nowhere: pip install "\.\[score\]"'
    ):
        arguments.package("nowhere", "score")


def test_of_a_long_value_an_error_shows_the_beginning():
    with pytest.raises(ValueError, match=r"Received: line=\['two dogs'") as caught:
        arguments.text("line", ["two dogs"] * 10_000)
    assert len(str(caught.value)) < 1_200


@pytest.mark.parametrize(
    ("name", "ours"),
    [("d_model", "model_dim"), ("nhead", "num_heads"), ("rate", "dropout")],
)
def test_a_name_of_a_different_library_is_known(name, ours):
    names = ("attention", "dropout", "gated", "num_heads", "model_dim")
    with pytest.raises(ValueError, match=f"Did you mean `{ours}`"):
        arguments.known({name: 1}, names, "Block")
    with pytest.raises(ValueError) as error:
        arguments.known({name: 1}, ("use_bias",), "Block")
    assert "Did you mean" not in str(error.value)


def test_an_unknown_keyword_is_refused_with_the_nearest_name():
    with pytest.raises(
        ValueError,
        match="`drop_out` must be an argument of `Block`. Received: drop_out=0.3. "
        "Did you mean `dropout`?",
    ):
        arguments.known({"drop_out": 0.3}, ("dropout", "name"), "Block")
