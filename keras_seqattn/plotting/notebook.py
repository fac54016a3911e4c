"""A matplotlib figure that a notebook shows without pyplot."""

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure that is a cell's last line is drawn, whether or not pyplot was used."""

    def _repr_png_(self) -> bytes:
        """Draws the figure as a PNG, which is what Jupyter asks for."""
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
