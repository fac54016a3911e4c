"""Several corpora as one: a tag before each source line, and each corpus's share."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_seqattn import arguments
from keras_seqattn.text.tokenizers import check_lines


def mixed(
    sources: Mapping[str, Any], targets: Any, temperature: float, seed: int
) -> tuple[list[str], list[str]]:
    """Joins corpora, of which the small ones are repeated.

    Of n pairs, where the largest corpus has m, come n (m / n)^(1 - 1 / temperature):
    all of them as often as it takes, and the rest drawn by `seed`.

    Args:
        sources: Dict from each corpus's tag to its lines.
        targets: Dict from the same tags to as many lines.
        temperature: Number of at least 1: 1 repeats nothing, a large one repeats each
            corpus until it is as large as the largest.
        seed: Integer.

    Returns:
        Two lists of strings; a source is its tag, a space and its line.

    Raises:
        ValueError: If the tags differ, a tag is no text, or a corpus is empty or its
            sides differ in length.

    Example:
        >>> mixed({"<de>": ["a", "b"], "<fr>": ["a"]},
        ...       {"<de>": ["x", "y"], "<fr>": ["z"]}, 1e9, seed=0)
        (['<de> a', '<de> b', '<fr> a', '<fr> a'], ['x', 'y', 'z', 'z'])

    Reference:
        Arivazhagan et al. 2019, "Massively Multilingual Neural Machine Translation in
        the Wild", section 4.2. Differs: drawn once, not anew in each epoch.
    """
    if not isinstance(targets, Mapping) or set(targets) != set(sources):
        tags = sorted(targets, key=str) if isinstance(targets, Mapping) else targets
        arguments.refuse(
            "targets", tags, f"a dict with the tags of `sources`, {list(sources)}"
        )
    if not sources:
        raise ValueError("`sources` must hold lines. Received: sources={}.")
    corpora = {tag: _checked(tag, sources[tag], targets[tag]) for tag in sources}
    largest = max(len(lines) for lines, _ in corpora.values())
    rng, joined = np.random.default_rng(seed), ([], [])
    for tag, (lines, translations) in corpora.items():
        size = len(lines)
        wanted = round(size * (largest / size) ** (1 - 1 / temperature))
        copies, rest = divmod(wanted, size)
        drawn = np.sort(rng.choice(size, rest, replace=False)).tolist()
        for i in [*range(size)] * copies + drawn:
            joined[0].append(f"{tag} {lines[i]}")
            joined[1].append(translations[i])
    return joined


def _checked(tag, sources, targets):
    """Returns one corpus as two lists of lines."""
    arguments.text("sources", tag)
    sources, targets = (
        list(check_lines(lines, f"{name}[{tag!r}]"))
        for name, lines in (("sources", sources), ("targets", targets))
    )
    if not sources or len(sources) != len(targets):
        raise ValueError(
            f"`targets[{tag!r}]` must hold as many lines as `sources[{tag!r}]`, and at "
            f"least one. Received: {len(sources)} sources, {len(targets)} targets."
        )
    return sources, targets
