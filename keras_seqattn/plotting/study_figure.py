"""A tuning study as one figure: scores over time and size, importance, trials.

The study may be any object with these members of `keras_seqattn.tuning.Study`:
`table()`, `hyperparameters()`, `importance()`, `objective` and `direction`.
"""

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from keras_seqattn import arguments
from keras_seqattn.annotations import ArrayLike
from keras_seqattn.plotting.figures import FAINT, draw_title, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from keras_seqattn.tuning.study import Study


COLOURS = {
    "completed": "#0f766e",
    "paused": "#2563eb",
    "pruned": "#a16207",
    "running": "#64748b",
    "stopped": "#7c3aed",
}
BEST_COLOUR, LINE_COLOUR = "#c2410c", "#0f766e"
MOST_AXES = 9  # of parallel coordinates that can still be told apart
INACTIVE = -0.15  # height of a hyperparameter that is inactive in a trial
NAMES = {
    "val_token_crossentropy": "validation cross-entropy (nats per token)",
    "val_perplexity": "validation perplexity",
    "val_bleu": "validation BLEU",
    "val_chrf": "validation chrF",
}


def study(study: "Study", title: str | None = None) -> "Figure":
    """Draws what a study found, in four panels.

    They show the scores over the minutes of the study, with the best so far; the scores
    over the number of weights, with the Pareto front (those that no smaller model
    beats); each hyperparameter's share in the scores; and the trials as lines through
    their hyperparameters (parallel coordinates), coloured from the worst to the best.

    Args:
        study: A `keras_seqattn.tuning.Study`.
        title: Text above the figure; None: the number of trials and the best score.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If no trial has a score.
    """
    arguments.offers("study", study, ("table", "importance"), "a `tuning.Study`")
    arguments.text("title", title, optional=True)
    table = study.table()
    scored = table[table["score"].notna()] if len(table) else table
    if not len(scored):
        raise ValueError(
            "`study` must hold a trial with a score. "
            f"Received: study with {len(table)} trials."
        )
    figure = new_figure((12, 8))
    panels = figure.subplot_mosaic(
        [["time", "size", "importance"], ["lines"] * 3], height_ratios=(1, 1.1)
    )
    _draw_time(panels["time"], scored, study)
    _draw_size(panels["size"], scored, study)
    shares = study.importance()
    _draw_importance(panels["importance"], shares)
    _draw_lines(panels["lines"], scored, study, shares)
    _tell_statuses(panels["time"], table)
    # Below, where no point lies behind it.
    handles, labels = panels["size"].get_legend_handles_labels()
    handles, labels = [*panels["time"].lines, *handles], ["best so far", *labels]
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=len(labels),
        frameon=False,
        fontsize=8,
    )
    scores = scored["score"]
    best = scores.max() if study.direction == "max" else scores.min()
    count = f"{len(scored)} trial{'s' * (len(scored) > 1)}"
    draw_title(figure, title or f"{count}, best {study.objective} {best:.4g}")
    return figure


def _draw_time(panel, scored, study):
    """Draws the score of each trial at the time it ended, and the best until then."""
    # A trial that ran out of the study's time has no end: it is drawn at the last one.
    ends = scored["finished_at"].fillna(scored["finished_at"].max()).fillna(0.0) / 60
    order = np.argsort(ends.to_numpy(), kind="stable")
    minutes, scores = ends.to_numpy()[order], scored["score"].to_numpy(float)[order]
    accumulate = np.maximum if study.direction == "max" else np.minimum
    panel.step(minutes, accumulate.accumulate(scores), where="post", color=LINE_COLOUR)
    _scatter(panel, ends, scored)
    _label(panel, "minutes of the study", NAMES.get(study.objective, study.objective))


def _draw_size(panel, scored, study):
    """Draws scores over model sizes, and the front that no smaller model beats."""
    from matplotlib.ticker import EngFormatter

    sizes = scored["parameters"].to_numpy(float)
    front = pareto_front(sizes, scored["score"].to_numpy(float), study.direction)
    panel.plot(
        [*sizes[front], sizes.max()],  # The last one beats all larger models too.
        scored["score"].to_numpy(float)[[*front, front[-1]]],
        color=BEST_COLOUR,
        drawstyle="steps-post",
        label="Pareto front",
    )
    _scatter(panel, sizes, scored)
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.locator_params(axis="x", nbins=5)
    _label(panel, "weights", NAMES.get(study.objective, study.objective))


def pareto_front(sizes: ArrayLike, scores: ArrayLike, direction: str) -> list[int]:
    """Returns the indices of the models that no smaller or equal one beats.

    The smallest model comes first.

    Example:
        >>> pareto_front([1, 2, 3], [5.0, 6.0, 4.0], "min")
        [0, 2]
    """
    sign = -1 if direction == "max" else 1
    costs = sign * np.asarray(scores, float)
    front = []
    for index in np.lexsort((costs, sizes)):
        if not front or costs[index] < costs[front[-1]]:
            front.append(int(index))
    return front


def _draw_importance(panel, shares):
    """Draws each hyperparameter's share in the scores as a bar."""
    names = list(shares)[::-1]
    places = range(len(names))
    panel.barh(places, [shares[name] for name in names], color=LINE_COLOUR, height=0.6)
    panel.set_yticks(places, names, parse_math=False)
    if not names:
        panel.text(0.5, 0.5, "too few trials", ha="center", transform=panel.transAxes)
        panel.set_xticks([])
        panel.set_yticks([])
    _label(panel, "share in the scores (permutation)", "")
    panel.tick_params(axis="y", length=0, labelsize=8)


def _draw_lines(panel, scored, study, shares):
    """Draws a line for each trial, through its hyperparameters and its score."""
    names = sorted(study.hyperparameters(), key=lambda name: -shares.get(name, 0.0))
    # A study that still runs may have got more of them since.
    names = [name for name in names if name in scored][:MOST_AXES]
    axes = [_coordinates(scored[name]) for name in names]
    scores = scored["score"].to_numpy(float)
    axes.append((_scale(scores), _end_ticks(scores)))
    sign = 1 if study.direction == "max" else -1
    ranks = np.argsort(np.argsort(sign * scores, kind="stable"), kind="stable")
    colours = _colours(ranks)
    for trial in np.argsort(ranks):  # the best drawn last, above the others
        heights = [places[trial] for places, _ in axes]
        panel.plot(
            range(len(axes)),
            heights,
            color=colours[trial],
            linewidth=2.5 if colours[trial] == BEST_COLOUR else 1,
            marker="o" if len(axes) == 1 else "",
        )
    for place, (_, ticks) in enumerate(axes):
        _draw_axis(panel, place, ticks)
    labels = [*(name.replace("_", "\n") for name in names), study.objective]
    panel.set_xticks(range(len(axes)), labels, fontsize=8, parse_math=False)
    panel.set_yticks([])
    panel.spines[:].set_visible(False)
    panel.tick_params(length=0)
    panel.set_xlim(-0.1, len(axes) - 0.6)
    panel.set_ylim(INACTIVE - 0.05, 1.05)
    panel.set_title(
        "each line a trial: the stronger its colour the better, the best in orange",
        fontsize=9,
    )


def _draw_axis(panel, place, ticks):
    """Draws an axis of the parallel coordinates, with (height, value) pairs on it."""
    panel.axvline(place, color=FAINT, zorder=0)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
    for height, value in ticks:
        panel.text(
            place + 0.03,
            height,
            _text(value),
            fontsize=7,
            va="center",
            color="black",  # as its box is white, whatever the style
            parse_math=False,
            bbox=box,
        )


def _coordinates(column):
    """Returns heights in [0, 1], or `INACTIVE`, and (height, value) pairs to write."""
    values = column.dropna()
    inactive = [(INACTIVE, "inactive")] if len(values) < len(column) else []
    kinds = sorted(set(values), key=lambda value: (str(type(value)), value))
    # Of few different values each is written on its axis, of more only the two ends.
    numeric = column.dtype.kind in "iuf" and len(kinds) > 6
    if numeric:
        places = np.nan_to_num(_scale(column.to_numpy(float)), nan=INACTIVE)
        return places, [*inactive, *_end_ticks(values)]
    height = {kind: i / max(1, len(kinds) - 1) for i, kind in enumerate(kinds)}
    places = np.array([height.get(value, INACTIVE) for value in column])
    return places, [*inactive, *((height[kind], kind) for kind in kinds)]


def _end_ticks(values):
    low, high = values.min(), values.max()
    return [(0.0, low), (1.0, high)] if low < high else [(0.0, low)]


def _scale(values):
    low, high = np.nanmin(values), np.nanmax(values)
    return (values - low) / (high - low or 1.0)


def _text(value):
    if isinstance(value, bool | np.bool_ | str):
        return str(value)
    return f"{value:.3g}"


def _colours(ranks):
    """Returns a colour for each rank, from pale to strong, and another for the best."""
    pale, strong = np.array([0.80, 0.84, 0.88]), np.array([0.06, 0.46, 0.43])
    best = len(ranks) - 1
    return [
        BEST_COLOUR if rank == best else tuple(pale + rank / best * (strong - pale))
        for rank in ranks
    ]


def _scatter(panel, x, scored):
    x = np.asarray(x, float)
    for status, colour in COLOURS.items():
        chosen = (scored["status"] == status).to_numpy()
        if chosen.any():
            scores = scored["score"].to_numpy(float)[chosen]
            panel.scatter(x[chosen], scores, color=colour, label=status, s=18, zorder=3)


def _tell_statuses(panel, table):
    """Writes how many trials have each status, including those without a score."""
    counts = table["status"].value_counts()
    # Non-breaking spaces, so that a line ends only after a comma.
    each = (f"{count} {status}" for status, count in counts.items())
    text = ", ".join(one.replace(" ", "\xa0") for one in each)
    panel.set_title(textwrap.fill(text, 56), fontsize=8, loc="left")


def _label(panel, x, y):
    panel.set_xlabel(x, fontsize=9)
    panel.set_ylabel(y, fontsize=9, parse_math=False)
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color=FAINT)
    panel.set_axisbelow(True)
