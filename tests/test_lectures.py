"""Each lecture prints the worked figures, computed as it runs, and draws a picture."""

import pathlib
import re
import runpy
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.backends("tensorflow", "torch")

LECTURES = pathlib.Path(__file__).parent.parent / "examples" / "lectures"
# By lecture, what is printed behind a label. Figures computed in float64 by hand; a
# float32 sum of products of 100 is good to 1e-5 of the largest.
FIGURES = {
    "lecture_1_softargmax": {
        "weights of q = [0, 10, 0]": [3.72661e-6, 0.9999888, 3.72661e-6, 3.72661e-6],
        "output of q = [0, 10, 0]": [10.00399, 4.09927e-5, 0],
        "weights of q = [0, 0, 10]": [1.86332e-6, 1.86332e-6, 0.4999981, 0.4999981],
        "output of q = [0, 0, 10]": [549.99797, 5.49998, 0],
        "weights of q = [10, 10, 0]": [0.4999981, 0.4999981, 1.86332e-6, 1.86332e-6],
        "output of q = [10, 10, 0]": [5.502029, 2.04965e-5, 0],
        "sums of the columns of A": [1, 1, 1],
    },
    "lecture_2_scores_and_heads": {
        "additive scores": [0.96402758, 1.52318831],
        "weights, dot product": [0.73105858, 0.26894142],
        "weights, scaled by 1 / sqrt(2)": [0.66976155, 0.33023845],
        "weights, additive": [0.36374167, 0.63625833],
    },
    "lecture_3_matrices": {"sums over the source, least and most": [1, 1]},
    "lecture_4_order": {
        "as printed (base 1000, odd), position 1": [
            *(0.84147098, 0.98423023, 0.03161751, 0.99998419)
        ],
        "as printed (base 1000, odd), position 2": [
            *(0.90929743, 0.93741831, 0.06320340, 0.99993676)
        ],
        "standard (base 10000, even), position 1": [
            *(0.84147098, 0.54030231, 0.00999983, 0.99995000)
        ],
        "standard (base 10000, even), position 2": [
            *(0.90929743, -0.41614684, 0.01999867, 0.99980001)
        ],
        "h[1] and h[2]": [0.46211716, 0.49767559],
    },
    "lecture_5_families": {
        "scores": [14, 12],
        "weights": [0.88079708, 0.11920292],
        "weights, unscaled": [0.99999989, 1.12535e-7],
        "largest gradient into the segment before": [0],
    },
}
EQUALITIES = {
    "lecture_1_softargmax": [
        "largest difference of A",
        "largest difference of H, to its largest number",
    ],
    "lecture_2_scores_and_heads": [
        "heads at once - one by one",
        "heads at once - two stages",
    ],
    "lecture_3_matrices": ["vector loop - rows", "columns - rows"],
    "lecture_5_families": ["empty memory - plain decoder"],
}


@pytest.fixture
def attend(monkeypatch, tmp_path, capsys):
    """Runs a lecture; gives what it printed, and its figures by their labels."""
    monkeypatch.syspath_prepend(str(LECTURES))

    def run(name, *options):
        script = LECTURES / f"{name}.py"
        arguments = [script, "--output", tmp_path / "pictures", *options]
        monkeypatch.setattr(sys, "argv", list(map(str, arguments)))
        runpy.run_path(str(script), run_name="__main__")
        printed = capsys.readouterr().out
        lines = re.findall(r"^  (.*?): (-?\d[-+.\de ]*)$", printed, re.M)
        (path,) = (tmp_path / "pictures").iterdir()
        assert path.read_bytes().startswith(b"\x89PNG")
        assert f"Picture: {path}" in printed
        return printed, {label: np.array(row.split(), float) for label, row in lines}

    yield run
    sys.modules.pop("blackboard", None)


def assert_figures(name, figures):
    for label, expected in FIGURES[name].items():
        np.testing.assert_allclose(figures[label], expected, rtol=2e-5, err_msg=label)
    for label in EQUALITIES.get(name, ()):
        assert figures[label] <= 1e-6, label


def test_every_lecture_has_its_figures():
    assert {path.stem for path in LECTURES.glob("lecture_*.py")} == set(FIGURES)


@pytest.mark.slow_on("tensorflow")
@pytest.mark.parametrize(
    "name", ["lecture_1_softargmax", "lecture_2_scores_and_heads", "lecture_3_matrices"]
)
def test_attention_is_what_the_lectures_say(name, attend):
    printed, figures = attend(name)
    assert_figures(name, figures)
    if name == "lecture_3_matrices":
        assert "(batch, heads, target, source): (1, 2, 3, 5)" in printed


def test_order_is_what_the_lecture_says(attend):
    _, figures = attend("lecture_4_order", "--steps", 0)
    assert_figures("lecture_4_order", figures)


def test_steps_are_not_negative(attend, capsys):
    with pytest.raises(SystemExit):
        attend("lecture_4_order", "--steps", -1)
    assert "`steps` must be at least 0. Received: -1" in capsys.readouterr().err


@pytest.mark.slow
def test_both_models_learn_to_say_digits_backwards(attend):
    printed, _ = attend("lecture_4_order")
    models = r"(GRU with attention|Transformer): [\d,]+ weights, loss \d"
    assert len(re.findall(models, printed)) == 2
    right = re.findall(r"(\d+) of 100 unseen rows right", printed)
    assert len(right) == 2 and all(int(count) > 90 for count in right)


@pytest.mark.slow_on("tensorflow")
def test_families_are_what_the_lecture_says(attend):
    printed, figures = attend("lecture_5_families")
    assert_figures("lecture_5_families", figures)
    assert "8 heads on 2 words: (1, 2, 512)" in printed
    assert "index 5 is 'am'; the argmax of the logits, too: True" in printed
    assert figures["change by another segment before"] > 0.01
    assert figures["largest gradient into the segment itself"] > 0.01
