"""Figures are drawn: what was given stands on them, what does not fit is an error."""

import html
import pickle
import re
import sys

import keras
import numpy as np
import pandas
import pytest

from keras_seqattn import plotting
from keras_seqattn.plotting import figures, study_figure

pytestmark = pytest.mark.backends("tensorflow", "torch")

SOURCE = ["A", "▁dog", "▁", "\n", "</s>"]
TARGET = ["Ein", "▁Hund", "</s>"]


@pytest.fixture(autouse=True)
def no_global_state(monkeypatch):
    """Makes every import of pyplot, and so of a window, an error."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)


@pytest.fixture
def csv_path(tmp_path):
    path = tmp_path / "history.csv"
    path.write_text(
        "epoch,accuracy,loss,minutes,perplexity,val_loss,val_perplexity\n"
        "0,0.1,4.0,0.5,54.0,3.5,33.0\n"
        "1,0.2,3.0,1.0,20.0,NA,NA\n"
        "1,0.3,2.0,1.7,7.4,2.5,12.0\n"
    )
    return path


def texts(ticks):
    return [tick.get_text() for tick in ticks]


def drawn(panel):
    """Maps the label of each line of a panel to its points."""
    return {line.get_label(): line.get_xydata().tolist() for line in panel.lines}


def test_weights_may_be_tensors_with_a_gradient():
    weights = keras.Variable(np.full((3, 5), 0.2, "float32")).value * 1.0
    figure = plotting.attention_map(weights, SOURCE, TARGET)
    assert len(figure.axes) == 2


def test_one_attention_map(rng, tmp_path):
    weights = rng.random((3, 5))
    figure = plotting.attention_map(weights, SOURCE, TARGET, title="a title")
    panel, bar = figure.axes
    np.testing.assert_allclose(panel.images[0].get_array(), weights, rtol=1e-6)
    assert panel.images[0].get_clim() == bar.get_ylim() == (0, 1)
    assert texts(panel.get_xticklabels()) == ["A", "␣dog", "␣", r"\n", "</s>"]
    assert texts(panel.get_yticklabels()) == ["Ein", "␣Hund", "</s>"]
    assert panel.get_title() == ""
    assert figure.get_suptitle() == "a title"
    figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_a_long_title_is_broken_into_lines():
    title = "One sentence\nthe mean attention of all layers and heads to its words"
    figure = plotting.attention_map(np.full((2, 2), 0.5), ["a", "b"], ["c", "d"], title)
    figure.draw_without_rendering()
    broken = figure.get_suptitle()
    assert broken.startswith("One sentence\n") and broken.split() == title.split()
    (drawn_title,) = [text for text in figure.texts if text.get_text() == broken]
    extent, page = drawn_title.get_window_extent(), figure.bbox
    assert page.x0 <= extent.x0 < extent.x1 <= page.x1
    assert max(panel.bbox.y1 for panel in figure.axes) < extent.y0


@pytest.mark.parametrize(
    ("shape", "titles"),
    [
        ((2,), ["head 1", "head 2"]),
        ((1,), ["head 1"]),
        ((2, 1), ["layer 1, head 1", "layer 2, head 1"]),
    ],
)
def test_a_grid_of_layers_by_heads(rng, shape, titles):
    weights = rng.random((*shape, 3, 5))
    *panels, _ = plotting.attention_map(weights, SOURCE, TARGET).axes
    assert [panel.get_title() for panel in panels] == titles
    for panel, one in zip(panels, weights.reshape(-1, 3, 5), strict=True):
        np.testing.assert_allclose(panel.images[0].get_array(), one, rtol=1e-6)


@pytest.mark.parametrize("kind", [np.array, pandas.Series])
def test_tokens_may_be_an_array(kind):
    names = []
    for tokens in ((SOURCE, TARGET), (kind(SOURCE), kind(TARGET))):
        panel = plotting.attention_map(np.ones((3, 5)) / 5, *tokens).axes[0]
        labels = [*panel.get_xticklabels(), *panel.get_yticklabels()]
        names.append([label.get_text() for label in labels])
    assert len(names[0]) == 8 and names[0] == names[1]


def test_weights_of_no_tokens_are_an_error():
    with pytest.raises(ValueError, match=r"Received: weights.shape=\(0, 5\)"):
        plotting.attention_map(np.zeros((0, 5)), SOURCE, [])


def test_learning_curves_of_a_file(csv_path, tmp_path):
    figure = plotting.learning_curves(csv_path, title="a title")
    loss, accuracy, perplexity = figure.axes
    assert loss.get_ylabel() == "loss"
    assert loss.get_xlabel() == "epochs of training"
    assert drawn(loss) == {
        "training": [[1, 4.0], [2, 2.0]],
        "validation": [[1, 3.5], [2, 2.5]],
    }
    assert drawn(accuracy) == {"training": [[1, 0.1], [2, 0.3]]}
    assert perplexity.get_yscale() == "log"
    assert texts(loss.get_legend().get_texts()) == ["training", "validation"]
    assert [note.get_text() for note in loss.texts] == ["2", "2.5"]
    figure.savefig(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_single_epoch_is_a_point_that_can_be_seen():
    (one,) = plotting.learning_curves({"loss": [2.0]}).axes[0].lines
    (two,) = plotting.learning_curves({"loss": [2.0, 1.0]}).axes[0].lines
    assert (one.get_marker(), two.get_marker()) == ("o", "")


def test_the_fullest_panel_has_the_legend():
    history = {"loss": [2.0, 1.0], "bleu": [3.0, 4.0], "val_bleu": [2.0, 5.0]}
    loss, bleu = plotting.learning_curves(history).axes
    assert loss.get_legend() is None
    assert texts(bleu.get_legend().get_texts()) == ["training", "validation"]


def test_two_runs_in_one_file_are_told(tmp_path):
    path = tmp_path / "history.csv"
    path.write_text("epoch,loss\n0,5.0\n1,4.0\n0,3.0\n")
    with pytest.warns(UserWarning, match="begin at 0 again.*history.csv"):
        (panel,) = plotting.learning_curves(path).axes
    assert drawn(panel) == {"training": [[1, 3.0], [2, 4.0]]}


def test_a_notebook_shows_a_figure_and_a_page():
    weights = np.full((2, 2), 0.5)
    figure = plotting.attention_map(weights, ["a", "b"], ["c", "d"])
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert pickle.loads(pickle.dumps(figure)).axes
    page = plotting.attention_html(weights, ["a", '"'], ["c", "d"])
    frame = page._repr_html_()
    (given,) = re.findall('<iframe srcdoc="([^"]*)" style="[^"]*"></iframe>', frame)
    assert html.unescape(given) == page


def test_learning_curves_by_minutes(csv_path):
    panel = plotting.learning_curves(csv_path, x="minutes").axes[0]
    assert panel.get_xlabel() == "minutes of training"
    assert drawn(panel)["training"] == [[0.5, 4.0], [1.7, 2.0]]


def test_learning_curves_of_what_fit_returns():
    history = keras.callbacks.History()
    history.history = {"loss": [2.0], "other": [1.0], "val_loss": [3.0]}
    loss, other = plotting.learning_curves(history).axes
    assert drawn(loss) == {"training": [[1, 2.0]], "validation": [[1, 3.0]]}
    assert other.get_ylabel() == "other"
    history.epoch = [5]  # of `fit(initial_epoch=5)`
    loss, _ = plotting.learning_curves(history).axes
    assert drawn(loss)["training"] == [[6, 2.0]]


def test_epochs_without_a_validation_are_no_points(tmp_path):
    """As the logger writes `fit(validation_freq=2)`, and a run without validation."""
    path = tmp_path / "history.csv"
    path.write_text(
        "epoch,loss,val_loss\n0,5.0,NA\n1,4.0,3.5\n2,3.0,NA\n3,2.5,2.0\n4,2.0,NA\n"
    )
    (panel,) = plotting.learning_curves(path).axes
    losses = [[1, 5.0], [2, 4.0], [3, 3.0], [4, 2.5], [5, 2.0]]
    assert drawn(panel) == {"training": losses, "validation": [[2, 3.5], [4, 2.0]]}
    assert [note.xy for note in panel.texts] == [(5, 2.0), (4, 2.0)]
    path.write_text("epoch,loss,val_loss\n0,5.0,NA\n1,4.0,NA\n")
    (panel,) = plotting.learning_curves(path).axes
    assert drawn(panel) == {"training": losses[:2]}
    plotting.learning_curves({"loss": [float("nan")]})  # It diverged at once.


def test_lists_of_which_nobody_knows_the_epochs_are_an_error():
    """What `fit(validation_freq=2)` returns does not tell which were validated."""
    history = {"loss": [3.0, 2.0], "val_loss": [2.5]}
    received = re.escape("Received: 2 of 'loss', 1 of 'val_loss', 2 of 'epoch'.")
    with pytest.raises(
        ValueError, match=f"`history` must have .*CSVLogger.*{received}"
    ):
        plotting.learning_curves(history)
    (panel,) = plotting.learning_curves({**history, "val_loss": [np.nan, 2.5]}).axes
    assert drawn(panel)["validation"] == [[2, 2.5]]


@pytest.mark.parametrize("history", [{}, {"loss": []}])
def test_a_history_of_no_epoch_is_an_error(history, tmp_path):
    received = re.escape(f"Received: history={history}.")
    with pytest.raises(ValueError, match=f"`history` must hold .*{received}"):
        plotting.learning_curves(history)
    (tmp_path / "empty.csv").write_text("epoch,loss\n")
    with pytest.raises(ValueError, match="`history` must hold .*empty.csv"):
        plotting.learning_curves(tmp_path / "empty.csv")


@pytest.mark.parametrize("end", ["2", "2,1.0", "2,1.0,"])
def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path, end):
    path = tmp_path / "history.csv"
    path.write_text(f"epoch,loss,val_loss\n0,5.0,4.0\n1,3.0,2.0\n{end}")
    (panel,) = plotting.learning_curves(path).axes
    assert drawn(panel)["validation"] == [[1, 4.0], [2, 2.0]]


def test_a_metric_that_is_a_vector_is_not_drawn(tmp_path):
    """It is one for each class, as from `R2Score(class_aggregation=None)`."""
    history = {"loss": [2.0, 1.0], "r2_score": list(np.ones((2, 3)))}
    path = tmp_path / "history.csv"
    logger = keras.callbacks.CSVLogger(path)
    logger.on_train_begin()
    for epoch in range(2):
        logs = {name: values[epoch] for name, values in history.items()}
        logger.on_epoch_end(epoch, logs)
    logger.on_train_end()
    for given in (history, path):
        (panel,) = plotting.learning_curves(given).axes
        assert drawn(panel) == {"training": [[1, 2.0], [2, 1.0]]}


@pytest.mark.parametrize(
    ("history", "message"),
    [
        (3, "be what `fit` returned, .* or the path of a CSV file. .*history=3"),
        ({"loss": [1.0, None]}, "hold numbers.*Received: None in the column 'loss'"),
        ({"loss": ["a"]}, "hold numbers.*Received: 'a' in the column 'loss'"),
        ({"epoch": [1, 2]}, r"hold a metric.*x='epoch', columns \['epoch'\]"),
        ("epoch;loss\n0;1.0\n", r"commas.*history.csv.*\['epoch;loss'\]"),
        ("epoch,loss\n0\n1,2.0\n", r"as many cells.*history.csv.*\['0', None\]"),
        ("epoch,loss\n0,1.01,2.0\n1,1.5\n", r"as many cells.*\['2.0'\]"),
        ("epoch,loss\n0,1.0\n1,1.0e\n", "numbers.*'1.0e' in the column 'loss'"),
    ],
)
def test_a_history_that_cannot_be_drawn_is_an_error(history, message, tmp_path):
    if isinstance(history, str):
        (tmp_path / "history.csv").write_text(history)
        history = tmp_path / "history.csv"
    with pytest.raises(ValueError, match=f"`history` must .*{message}"):
        plotting.learning_curves(history)


def test_an_unknown_column_is_an_error(csv_path):
    with pytest.raises(ValueError, match="`x` must be .*'minutes'.*x='seconds'"):
        plotting.learning_curves(csv_path, x="seconds")


class Study:
    """Trials of 1, 2, ... heads, with these scores."""

    objective, direction = "val_loss", "min"
    choice = "num_heads"

    def __init__(self, *scores):
        self.scores = scores

    def table(self):
        count = len(self.scores)
        columns = {"status": ["completed"] * count, "score": self.scores}
        numbers = [float(number) for number in range(1, 1 + count)]
        names = ("finished_at", "parameters", self.choice)
        return pandas.DataFrame({**columns, **dict.fromkeys(names, numbers)})

    def hyperparameters(self):
        return [self.choice] if len(self.scores) > 1 else []

    def importance(self):
        return {}


class Dollars(Study):
    """A study whose names and choices hold what would be formulas."""

    objective, choice = "val_$_$", "pat$_$"

    def table(self):
        return super().table().replace({self.choice: {1.0: "$a_$", 2.0: "b"}})

    def importance(self):
        return {self.choice: 1.0}


class Tabled(Study):
    """A study of a given table, and of the hyperparameters that have a share."""

    def __init__(self, direction, shares, **columns):
        self.direction, self.shares = direction, shares
        self.columns = {"status": "completed", "finished_at": 60.0, "parameters": 1.0}
        self.columns |= columns

    def table(self):
        return pandas.DataFrame(self.columns)

    def hyperparameters(self):
        return sorted(self.shares)

    def importance(self):
        return self.shares


@pytest.mark.parametrize(
    ("direction", "best", "so_far", "front"),
    [
        ("min", 1.0, [[1, 3.0], [2, 2.0], [2, 1.0]], [[10, 2.0], [30, 1.0]]),
        ("max", 3.0, [[1, 3.0], [2, 3.0], [2, 3.0]], [[10, 2.0], [20, 3.0]]),
    ],
)
def test_a_study_is_drawn_in_its_direction(direction, best, so_far, front):
    """A trial that ran out of time, and so has no end, stands at the last one."""
    scores = [2.0, 3.0, 1.0]
    trials = {
        "status": ["completed", "pruned", "stopped"],
        "finished_at": [120.0, 60.0, np.nan],
        "parameters": [10.0, 20.0, 30.0],
    }
    figure = plotting.study(
        Tabled(
            direction, {"num_heads": 1.0}, score=scores, num_heads=[1, 2, 4], **trials
        )
    )
    time, size, _, lines = figure.axes
    assert figure.get_suptitle() == f"3 trials, best val_loss {best:g}"
    assert [line.get_xydata().tolist() for line in time.lines] == [so_far]
    assert size.lines[0].get_xydata().tolist() == [*front, [30, best]]
    for panel, places in ((time, [2, 1, 2]), (size, [10, 20, 30])):
        found = {x.get_label(): x.get_offsets().tolist() for x in panel.collections}
        points = zip(trials["status"], places, scores, strict=True)
        assert found == {status: [[x, y]] for status, x, y in points}
    counts = time.get_title(loc="left").replace("\xa0", " ").split(", ")
    assert sorted(counts) == ["1 completed", "1 pruned", "1 stopped"]
    orange = [x for x in lines.lines if x.get_color() == study_figure.BEST_COLOUR]
    assert [line.get_ydata()[-1] for line in orange] == [(best - 1.0) / 2.0]


def test_trials_without_a_score_or_an_end_are_told_of_a_study():
    """One that is running, the first of all, stands at the study's beginning."""
    nan = np.nan
    status, ends = ["running", "failed", "nan"], [nan, 60.0, 120.0]
    trials = {"status": status, "finished_at": ends, "num_heads": [1, 2, 4]}
    found = Tabled("min", {"num_heads": 1.0}, score=[2.0, nan, nan], **trials)
    figure = plotting.study(found, title="Mine")
    assert figure.get_suptitle() == "Mine"
    time, *_ = figure.axes
    counts = time.get_title(loc="left").replace("\xa0", " ").split(", ")
    assert sorted(counts) == ["1 failed", "1 nan", "1 running"]
    assert [x.get_offsets().tolist() for x in time.collections] == [[[0.0, 2.0]]]
    assert [line.get_xydata().tolist() for line in time.lines] == [[[0.0, 2.0]]]


@pytest.mark.parametrize("scores", [(), (float("nan"),)])
def test_a_study_without_a_score_is_an_error(scores):
    message = f"`study` must hold a trial .*Received: study with {len(scores)} trials"
    with pytest.raises(ValueError, match=message):
        plotting.study(Study(*scores))


def test_the_lines_of_a_study_go_through_what_counts_most():
    """A number of many values has its height, another value its rank among few."""
    nan, count = np.nan, 8
    shares = {f"least_{i}": 0.01 * (9 - i) for i in range(8)}
    shares = {"rate": 0.5, "cell": 0.3, **shares}
    values = dict.fromkeys(shares, 1) | {
        "rate": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, nan],
        "cell": ["gru", "lstm", "simple", nan, *["gru"] * 4],
    }
    trials = Tabled("min", shares, score=[1.0 * i for i in range(count)], **values)
    *_, importance, lines = plotting.study(trials).axes
    assert texts(importance.get_yticklabels()) == list(shares)[::-1]
    widths = [bar.get_width() for bar in importance.patches]
    assert widths == list(shares.values())[::-1]
    names = [name.replace("\n", "_") for name in texts(lines.get_xticklabels())]
    assert names == [*list(shares)[: study_figure.MOST_AXES], "val_loss"]
    drawn = [x for x in lines.lines if x.get_color() != figures.FAINT]
    rows = sorted((line.get_ydata() for line in drawn), key=lambda row: row[-1])
    out = study_figure.INACTIVE
    rate, cell = np.transpose(rows)[:2].tolist()
    np.testing.assert_allclose(rate, [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0, out])
    np.testing.assert_allclose(cell, [0.0, 0.5, 1.0, out, *[0.0] * 4])
    said = {(round(x.get_position()[0]), x.get_text()) for x in lines.texts}
    assert {one for one in said if one[0] < 2} == {
        *((0, text) for text in ("inactive", "0", "10")),
        *((1, text) for text in ("inactive", "gru", "lstm", "simple")),
    }


@pytest.mark.parametrize("scores", [(2.0, 1.0, 3.0), (2.0, float("nan")), (2.0,)])
def test_the_best_trial_of_a_study_is_orange(scores):
    """Also where it is the only one with a score."""
    *_, lines = plotting.study(Study(*scores)).axes
    drawn = [line for line in lines.lines if line.get_color() != figures.FAINT]
    assert len(drawn) == np.isfinite(scores).sum()
    orange = drawn[-1]
    assert orange.get_color() == study_figure.BEST_COLOUR
    assert orange.get_linewidth() > 2
    assert len(orange.get_xdata()) > 1 or orange.get_marker() == "o"
    assert [line.get_color() for line in drawn].count(orange.get_color()) == 1


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[plot\]"'):
        plotting.learning_curves({"loss": [1.0]})


def test_dollar_signs_are_text(tmp_path):
    """A figure is drawn when it is saved: not till then is a formula read."""
    halves = np.full((1, 2), 0.5)
    drawings = [
        plotting.attention_map(halves, ["$$", "a"], ["$x$"], title="a $_$ b"),
        plotting.learning_curves({"$_$": [1, 2], "a$_$": [1, 2]}, "$_$", "$_$"),
        plotting.study(Dollars(2.0, 1.0), title="$_$"),
        plotting.study(Dollars(2.0, 1.0)),
    ]
    for figure in drawings:
        figure.savefig(tmp_path / "figure.png")
    *_, importance, lines = drawings[-1].axes
    assert texts(importance.get_yticklabels()) == ["pat$_$"]
    assert "$a_$" in texts(lines.texts)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 1), (1, 5)])
def test_the_labels_of_a_small_map_are_within_the_figure(rows, columns):
    weights = np.ones((rows, columns))
    figure = plotting.attention_map(weights, ["a"] * columns, ["b"] * rows)
    figure.draw_without_rendering()
    for label in (figure.get_supxlabel(), figure.get_supylabel()):
        (text,) = (one for one in figure.texts if one.get_text() == label)
        extent = text.get_window_extent()
        assert figure.bbox.containsx(extent.x0) and figure.bbox.containsx(extent.x1)
        assert figure.bbox.containsy(extent.y0) and figure.bbox.containsy(extent.y1)


@pytest.mark.parametrize(("highest", "fewest", "most"), [(5e3, 9, 16), (5e5, 5, 8)])
def test_a_perplexity_over_many_decades_has_few_labels(highest, fewest, most):
    (panel,) = plotting.learning_curves({"perplexity": [highest, 2.0]}).axes
    low, high = panel.get_ylim()
    ticks = panel.get_yticklabels(which="both")
    shown = [t for t in ticks if t.get_text() and low <= t.get_position()[1] <= high]
    assert fewest <= len(shown) <= most


def test_a_study_has_its_legend_below_its_panels():
    figure = plotting.study(Study(2.0, 1.0, 3.0))
    assert [panel.get_legend() for panel in figure.axes] == [None] * 4
    (legend,) = figure.legends
    names = ["best so far", "Pareto front", "completed"]
    assert texts(legend.get_texts()) == names
    figure.draw_without_rendering()
    below = legend.get_window_extent().y1
    assert all(panel.get_tightbbox().y0 >= below for panel in figure.axes)


@pytest.mark.parametrize(
    ("scores", "front"),
    [((2.0, 1.0, 3.0), [2.0, 1.0, 1.0]), ((1.0, 2.0), [1.0, 1.0]), ((2.0,), [2.0] * 2)],
)
def test_the_pareto_front_reaches_to_the_largest_model(scores, front):
    _, panel, *_ = plotting.study(Study(*scores)).axes
    (line,) = panel.lines
    assert line.get_ydata().tolist() == front
    assert line.get_xdata()[-1] == len(scores)


def test_a_study_of_one_trial_says_so():
    assert plotting.study(Study(2.0)).get_suptitle() == "1 trial, best val_loss 2"
