"""Fonts for labels in any script, and escapes for characters that no font has."""

import functools
from collections.abc import Sequence


def drawable(labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns drawable labels, and the font families that have all their characters.

    Matplotlib's default font comes first, then others that have the glyphs it lacks.
    Characters that no installed font has are escaped, so that a label never shows an
    empty box. Line breaks stay.
    """
    from matplotlib import font_manager

    default = font_manager.FontProperties()
    families = [default.get_name()]
    missing = set(map(ord, "".join(labels))) - {ord("\n")}
    missing -= _glyphs(font_manager.findfont(default))
    for font in font_manager.fontManager.ttflist if missing else ():
        is_upright = font.style == "normal" and font.weight == 400
        # Matplotlib's font of last resort draws a box for every character.
        if not is_upright or font.name.startswith("Last Resort"):
            continue
        # The family's name must select this very file.
        family = font_manager.FontProperties(family=[font.name])
        if font_manager.findfont(family) != font.fname:
            continue
        found = missing & _glyphs(font.fname)
        if found:
            families.append(font.name)
            missing -= found
    escapes = {c: chr(c).encode("unicode_escape").decode() for c in missing}
    return [label.translate(escapes) for label in labels], families


@functools.cache
def _glyphs(path):
    """Returns the characters for which a font file has outlines."""
    from matplotlib.ft2font import FT2Font

    font = FT2Font(path)
    return frozenset(font.get_charmap()) if font.scalable else frozenset()
