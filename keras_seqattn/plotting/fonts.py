"""Fonts for labels in any script: one that has the characters, or their escapes."""

import functools
from collections.abc import Sequence


def drawable(labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns labels, and the installed fonts' families that have all their characters.

    Matplotlib's own font comes first; another serves where it has no glyph. What no
    font has is escaped, so that a label never shows an empty box.
    """
    from matplotlib import font_manager

    default = font_manager.FontProperties()
    families = [default.get_name()]
    missing = {ord(c) for c in "".join(labels)} - _glyphs(
        font_manager.findfont(default)
    )
    for font in font_manager.fontManager.ttflist if missing else ():
        is_upright = font.style == "normal" and font.weight == 400
        # Matplotlib's font of last resort has a box for all characters.
        if not is_upright or font.name.startswith("Last Resort"):
            continue
        # A family must lead back to this very file.
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
    """Returns the characters that a font file has outlines of."""
    from matplotlib.ft2font import FT2Font

    font = FT2Font(path)
    return frozenset(font.get_charmap()) if font.scalable else frozenset()
