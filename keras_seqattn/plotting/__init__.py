"""Pictures: attention, learning curves, and what a study found.

The figures are drawn with matplotlib (extra `plot`), which is imported when a function
is called; the page of `attention_html` needs only a browser.
"""

from keras_seqattn.plotting.attention_view import attention_html
from keras_seqattn.plotting.figures import attention_map, learning_curves
from keras_seqattn.plotting.study_figure import study

__all__ = ["attention_html", "attention_map", "learning_curves", "study"]
