"""How the pictures of all benchmarks look."""

GRID = "#e2e8f0"


def begin(panels=1, size=(7, 4.2)):
    """Makes a figure and a row of panels: `(figure, panel, ...)`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    row = figure.subplots(1, panels, squeeze=False)[0]
    for panel in row:
        panel.grid(color=GRID)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, *row
