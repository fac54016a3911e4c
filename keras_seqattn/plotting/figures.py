"""Figures of attention weights and of learning curves.

Each function returns a `matplotlib.figure.Figure` that belongs to no window and no
global state: save it with `figure.savefig(path)`, or let a notebook show it.
Matplotlib is imported when a function is called.
"""

import csv
import itertools
import math
import os
import textwrap
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np

from keras_seqattn import arguments
from keras_seqattn.annotations import ArrayLike, Lines, Path
from keras_seqattn.plotting import fonts
from keras_seqattn.plotting.tokens import panels_of, readable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from keras_seqattn.sentence_attention import AttentionWeights


# Labels of the axes; any other column is labelled by its name.
LABELS = {
    "epoch": "epochs of training",
    "minutes": "minutes of training",
    "token_crossentropy": "cross-entropy (nats per token)",
    "perplexity": "perplexity (log scale)",
}
TRAINING_COLOUR, VALIDATION_COLOUR, FAINT = "#94a3b8", "#c2410c", "#e2e8f0"


def attention_map(
    weights: "AttentionWeights | ArrayLike",
    source_tokens: Lines | None = None,
    target_tokens: Lines | None = None,
    title: str | None = None,
) -> "Figure":
    """Draws attention weights: a row per target token, a column per source token.

    Several heads or layers make a grid: a row of panels per layer, a column per head.
    To draw a mean, pass the mean, as in the example. In self-attention source and
    target are one sequence. A layer of your own returns `(B, H, T, S)`: pass the scores
    of one sentence, such as `scores[0]`.
    Shapes: T target tokens, S source tokens, H heads.

    Args:
        weights: Array `(T, S)`, `(H, T, S)` or `(layers, H, T, S)` of numbers in
            [0, 1], or what `Translator.attention` returns, with its tokens.
        source_tokens: S strings. SentencePiece's mark of a space (U+2581) is drawn
            as an open box; control characters, and those that no installed font has,
            are drawn escaped.
        target_tokens: T strings, drawn likewise.
        title: Text above the figure, or None.

    Returns:
        A `matplotlib.figure.Figure` with a colour bar from 0 to 1.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If the shape of `weights` does not fit the tokens, or a weight is
            not in [0, 1].

    Example:
        >>> import numpy as np
        >>> weights = np.full((2, 4, 3, 3), 1 / 3)
        >>> tokens = ["A", "▁dog", "."]
        >>> figure = attention_map(weights.mean(axis=(0, 1)), tokens, tokens)
        >>> len(figure.axes)  # the map and its colour bar
        2
    """
    arguments.text("title", title, optional=True)
    panels, sources, targets = panels_of(weights, source_tokens, target_tokens)
    is_one_map = np.ndim(getattr(weights, "weights", weights)) == 2
    layers, heads, rows, columns = panels.shape
    labels, families = fonts.drawable([*readable(sources), *readable(targets)])
    source_labels, target_labels = labels[:columns], labels[columns:]
    cell = min(0.3, max(0.1, 12 / (heads * columns)))  # inches
    font_size = min(9, 54 * cell)  # points, 72 to the inch: three quarters of a cell
    # Inches of the longest labels, with 0.65 of the font size to a character.
    sides = source_labels, target_labels
    below, beside = (font_size / 110 * max(map(len, side)) for side in sides)
    width = heads * (columns * cell + 0.2) + beside + 1.4
    height = layers * (rows * cell + 0.3) + below + 0.8
    # At least as wide and high as the labels of the axes.
    figure = new_figure((max(width, 2.8), max(height, below + 2.2)))
    axes = figure.subplots(layers, heads, sharex=True, sharey=True, squeeze=False)
    for (layer, head), panel in np.ndenumerate(axes):
        image = panel.imshow(panels[layer, head], vmin=0, vmax=1, cmap="Blues")
        names = [f"layer {layer + 1}"] * (layers > 1) + [f"head {head + 1}"]
        if not is_one_map:
            panel.set_title(", ".join(names), fontsize=8)
        # Dollar signs are tokens, not formulas.
        panel.set_xticks(range(columns), source_labels, rotation=90, parse_math=False)
        panel.set_yticks(range(rows), target_labels, parse_math=False)
        panel.tick_params(labelsize=font_size, length=0, labelfontfamily=families)
        panel.spines[:].set_color(FAINT)
    figure.supxlabel("source tokens, attended to", fontsize=9)
    figure.supylabel("target tokens, attending", fontsize=9)
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02)
    bar.set_label("attention weight", fontsize=9)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=0)
    draw_title(figure, title)
    return figure


def learning_curves(
    history: keras.callbacks.History | dict[str, Sequence[float]] | Path,
    x: str = "epoch",
    title: str | None = None,
) -> "Figure":
    """Draws every metric of a training run, in training and in validation.

    If a file holds an epoch twice, because a kill came between its line and its backup,
    the later line counts; a last line that a kill cut off does not. If epochs begin at
    0 again, a warning says so. An epoch whose value is NaN has no point. A metric that
    is a vector, such as a number per class, is not drawn. Perplexity has a logarithmic
    axis.

    Args:
        history: What `fit` returned, its `history` dict, or the path of a file
            written by `keras.callbacks.CSVLogger`, with commas.
        x: Name of the column along the horizontal axis: "epoch", counted from 1, or
            any other, such as a "minutes" that a callback logged.
        title: Text above the figure, or None.

    Returns:
        A `matplotlib.figure.Figure` with one panel for each metric.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If `history` holds no epoch, lists of different lengths, a value
            that is no number, no column `x`, or no metric but `x`.
        FileNotFoundError: If `history` is the path of no file.

    Example:
        >>> figure = learning_curves({"loss": [3.0, 2.0], "val_loss": [3.1, 2.4]})
        >>> figure.axes[0].get_ylabel()
        'loss'
    """
    arguments.text("x", x)
    arguments.text("title", title, optional=True)
    columns = _columns(history)
    if x not in columns:
        arguments.refuse("x", x, f"a column of the history, one of {sorted(columns)}")
    names = (name for name in columns if name not in (x, "epoch", "minutes"))
    metrics = dict.fromkeys(name.removeprefix("val_") for name in names)
    metrics = sorted(metrics, key=lambda name: name != "loss")
    if not metrics:
        raise ValueError(
            "`history` must hold a metric, of one number an epoch, that is not `x`. "
            f"Received: x={x!r}, columns {sorted(columns)}."
        )
    figure = new_figure((4.2 * len(metrics), 3.4))
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    for panel, name in zip(panels, metrics, strict=True):
        _draw_metric(panel, columns, x, name)
    # The first panel with the most curves has the legend of all.
    fullest = max(panels, key=lambda panel: len(panel.lines))
    if fullest.lines:
        fullest.legend(frameon=False)
    draw_title(figure, title)
    return figure


def _draw_metric(panel, columns, x, name):
    """Draws one metric in training and in validation, where the columns have them."""
    curves = [
        (points, colour, label)
        for column, colour, label in (
            (name, TRAINING_COLOUR, "training"),
            (f"val_{name}", VALIDATION_COLOUR, "validation"),
        )
        if (points := _points(columns, x, column))
    ]
    highest = max((points[-1][1] for points, _, _ in curves), default=None)
    for points, colour, label in curves:
        *_, (place, last) = points
        panel.plot(
            *zip(*points, strict=True),
            color=colour,
            label=label,
            linewidth=2,
            marker="o" if len(points) == 1 else "",
        )
        panel.annotate(
            f"{last:.3g}",
            (place, last),
            xytext=(4, 0),
            textcoords="offset points",
            va="bottom" if last == highest else "top",  # So that they stay apart.
            color=colour,
            fontsize=8,
        )
    if name == "perplexity":
        panel.set_yscale("log", subs=(2, 3, 5))
        panel.yaxis.set_major_formatter("{x:g}")
        low, high = panel.get_ylim()
        if high < 1e4 * low:  # else they would stand one upon another
            panel.yaxis.set_minor_formatter("{x:g}")
    panel.set_xlabel(LABELS.get(x, x), parse_math=False)
    panel.set_ylabel(LABELS.get(name, name), parse_math=False)
    panel.xaxis.get_major_locator().set_params(integer=x == "epoch")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color=FAINT)
    panel.set_axisbelow(True)


def _points(columns, x, name):
    """Returns the points of a curve; NaN marks epochs without validation."""
    pairs = zip(columns[x], columns[name], strict=True) if name in columns else ()
    return [(place, y) for place, y in pairs if not math.isnan(y)]


def _columns(history):
    """Returns a dict from names to equally long lists, "epoch" from 1 among them."""
    epochs = getattr(history, "epoch", None)  # counted from 0
    history = getattr(history, "history", history)
    if isinstance(history, dict):
        wanted = "a dict from names to lists of numbers, one an epoch"
        columns = {
            name: list(arguments.sequence("history", values, wanted))
            for name, values in history.items()
        }
        if epochs is None:
            epochs = range(max(map(len, columns.values()), default=0))
        columns.setdefault("epoch", [1 + epoch for epoch in epochs])
    else:
        wanted = "what `fit` returned, its `history` dict, or the path of a CSV file"
        arguments.instance("history", history, str | os.PathLike, wanted)
        arguments.path("history", history)
        columns = _read_csv(history)
    if not columns["epoch"]:
        raise ValueError(
            "`history` must hold at least one epoch, which `fit` records when an epoch "
            f"ends. Received: history={history!r}."
        )
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        received = ", ".join(f"{count} of {name!r}" for name, count in lengths.items())
        raise ValueError(
            "`history` must have a number for each epoch, NaN for none: after "
            "`fit(validation_freq=2)` pass the path of a `CSVLogger`'s file, which "
            f"tells which epochs were validated. Received: {received}."
        )
    vectors = {
        name.removeprefix("val_")  # Without validation, its column has no values.
        for name, values in columns.items()
        if any(map(_is_vector, values))
    }
    return {
        name: [_number(name, value) for value in values]
        for name, values in columns.items()
        if name.removeprefix("val_") not in vectors
    }


def _read_csv(path):
    """Returns the columns of a `CSVLogger`'s file, with the epochs from 1."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if rows and "epoch" not in rows[0]:
        raise ValueError(
            "`history` must be a file with commas and a column 'epoch', as a "
            "`CSVLogger` writes by default. "
            f"Received: history={path!r}, with the columns {list(rows[0])}."
        )
    if rows and None in rows[-1].values():  # It was cut off by a kill.
        rows.pop()
    for row in rows:
        # The reader pads a short line with None, and keeps surplus cells under None.
        if None in row or None in row.values():
            raise ValueError(
                "`history` must be a file whose lines all have as many cells as the "
                f"first. Received: history={path!r}, with a line {list(row.values())}."
            )
    epochs = [_number("epoch", row["epoch"]) for row in rows]
    if any(later == 0 < earlier for earlier, later in itertools.pairwise(epochs)):
        warnings.warn(
            "`history` has epochs that begin at 0 again; of each epoch the last line "
            "is drawn. To draw two runs as one, pass `initial_epoch` to the second "
            f"`fit`. Received: history={str(path)!r}.",
            stacklevel=4,
        )
    last = dict(zip(epochs, rows, strict=True))
    names = rows[0] if rows else ()
    columns = {name: [last[epoch][name] for epoch in sorted(last)] for name in names}
    return columns | {"epoch": [epoch + 1 for epoch in sorted(last)]}


def _is_vector(value):
    """Returns whether a value, or a cell of a CSV file, is several numbers."""
    return np.ndim(value) > 0 or str(value).startswith(('"[', "["))


def _number(name, value):
    """Reads a number; "NA" is what Keras writes into a CSV file for no value."""
    try:
        return math.nan if str(value) in ("NA", "") else float(value)
    except (TypeError, ValueError):
        raise ValueError(
            "`history` must hold numbers, NaN for none. "
            f"Received: {value!r} in the column {name!r}."
        ) from None


def new_figure(size: tuple[float, float]) -> "Figure":
    """Returns an empty figure of a width and a height in inches."""
    arguments.package("matplotlib", "plot", "A figure")
    from keras_seqattn.plotting.notebook import NotebookFigure

    return NotebookFigure(figsize=size, layout="constrained")


def draw_title(figure: "Figure", title: str | None) -> None:
    """Writes a text above a figure as it is, in any script: a "$" starts no formula."""
    (text,), families = fonts.drawable([title or ""])
    # Not matplotlib's `wrap`, which reads dollar signs as formulas. A character takes
    # about 0.6 of the font size, 11 / 72 of an inch.
    width = int(figure.get_figwidth() / (0.6 * 11 / 72))
    text = "\n".join(textwrap.fill(line, width) for line in text.splitlines())
    figure.suptitle(text, fontsize=11, fontfamily=families, parse_math=False)
