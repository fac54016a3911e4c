"""Attention as one HTML file, in which a reader picks layer, head and token."""

import base64
import hashlib
import html
import json
from typing import TYPE_CHECKING

import numpy as np

from keras_seqattn import arguments
from keras_seqattn.annotations import ArrayLike, Lines
from keras_seqattn.plotting import attention_page, tokens

if TYPE_CHECKING:
    from keras_seqattn.sentence_attention import AttentionWeights


# One byte holds a weight to within 0.002: 12 layers of 16 heads over 64 x 64 tokens
# take about 1 MB. The script in `attention_page` divides by the same number.
STEPS = 255


def attention_html(
    weights: "AttentionWeights | ArrayLike",
    source_tokens: Lines | None = None,
    target_tokens: Lines | None = None,
    title: str | None = None,
) -> str:
    """Writes attention weights as a page that a reader explores in a browser.

    The page shows every layer and head as a small map, and the tokens of both sides.
    Under the pointer, or with the keyboard's focus, a target token shows what it
    attends to, and a source token what attends to it, shaded and in numbers. The page
    is one file that loads nothing, and its security policy forbids loading. Every token
    is shown as text, whatever it contains. Weights are rounded to 1/255.
    Shapes: T target tokens, S source tokens, H heads.

    Args:
        weights: What `Translator.attention` returns, or an array `(T, S)`,
            `(H, T, S)` or `(layers, H, T, S)` of numbers in [0, 1].
        source_tokens: S strings, where `weights` is an array.
        target_tokens: T strings, where `weights` is an array. For self-attention, the
            same as `source_tokens`.
        title: Text above the page; None: "Attention".

    Returns:
        The page, a string of ASCII characters: write it to a file that ends in ".html".
        A notebook shows it in a frame, if it is a cell's last line.

    Raises:
        ValueError: If the shape of `weights` does not fit the tokens, or a weight is
            not in [0, 1].

    Example:
        >>> import numpy as np
        >>> weights = np.full((2, 4, 3, 3), 1 / 3)
        >>> page = attention_html(weights, ["A", "▁dog", "."], ["Ein", "▁Hund", "."])
        >>> page[:15]
        '<!DOCTYPE html>'
    """
    arguments.text("title", title, optional=True)
    weights, source, target = tokens.panels_of(weights, source_tokens, target_tokens)
    steps = np.rint(np.minimum(weights, 1) * STEPS).astype("uint8")
    data = {
        "shape": weights.shape,
        "source": tokens.readable(source),
        "target": tokens.readable(target),
        "weights": base64.b64encode(steps.tobytes()).decode(),
    }
    title = html.escape(title or "Attention")
    page = attention_page.PAGE.substitute(
        title=title.encode("ascii", "xmlcharrefreplace").decode(),
        style=attention_page.STYLE,
        script=attention_page.SCRIPT,
        style_hash=_sha256(attention_page.STYLE),
        script_hash=_sha256(attention_page.SCRIPT),
        data=_script_safe(json.dumps(data)),
    )
    return _Page(page)


class _Page(str):
    """A page that a notebook shows in a frame, apart from its own style and script."""

    def _repr_html_(self):
        size = "width: 100%; height: 45rem; border: 0"
        return f'<iframe srcdoc="{html.escape(self)}" style="{size}"></iframe>'


def _script_safe(text):
    """Escapes characters in JSON's strings that could end a script element."""
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _sha256(text):
    """Returns the hash by which a content security policy knows an element."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
