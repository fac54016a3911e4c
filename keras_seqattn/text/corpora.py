"""Named corpora of parallel text."""

import pathlib
from typing import Any, Literal, overload

import keras

from keras_seqattn import arguments
from keras_seqattn.annotations import Lines, Path
from keras_seqattn.text.parallel import read_parallel
from keras_seqattn.text.phrases import LANGUAGES, SPLITS, phrase_splits

MULTI30K_ADDRESS = "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d/"
MULTI30K_FOLDER = "data/task1/raw/"
MULTI30K_SHA256 = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.fr.gz": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "train.cs.gz": "a65adb8b32e3bc664f21ecba7a6e7f6950fd1f405e135f7c312faabdb6255077",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.fr.gz": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
    "val.cs.gz": "b63226e05c4bd5dd6a42897d74b86a1b9d2c31498252c572b1ea7f7996927fcc",
    "test_2016_flickr.en.gz": (
        "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"
    ),
    "test_2016_flickr.de.gz": (
        "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"
    ),
    "test_2016_flickr.fr.gz": (
        "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90"
    ),
    "test_2016_flickr.cs.gz": (
        "200a4a74cc9560f051924abb9803be008d1908d77f747e9141aeb86dfd2797f1"
    ),
}
# The languages and the splits of each corpus.
CHOICES = {
    "multi30k": (("en", "de", "fr", "cs"), ("train", "val", "test_2016_flickr")),
    "phrases": (LANGUAGES, SPLITS),
}


@overload
def load_parallel(
    name: Literal["multi30k", "phrases"],
    source: str,
    target: str,
    split: str = "train",
    data_dir: Path | None = None,
) -> tuple[list[str], list[str]]: ...


@overload
def load_parallel(
    name: Literal["multi30k", "phrases"],
    source: str,
    target: Lines,
    split: str = "train",
    data_dir: Path | None = None,
) -> tuple[dict[str, list[str]], dict[str, list[str]]]: ...


def load_parallel(
    name: Literal["multi30k", "phrases"],
    source: str,
    target: str | Lines,
    split: str = "train",
    data_dir: Path | None = None,
) -> tuple[Any, Any]:
    """Loads a named corpus of sentences and their translations.

    "multi30k": 29,000 descriptions of photographs in en, de, fr and cs, with the
    splits "train", "val" and "test_2016_flickr". The files `<split>.<language>.gz`
    come from `data_dir`; without it they are downloaded once, to `datasets/multi30k` in
    Keras's folder, and checked by SHA-256.

    "phrases": dates, times, durations, amounts of money, measures, countries, languages
    and lists of them, made from the CLDR data that comes with Babel. They are short,
    were translated by people, and need no network. Languages en, de, fr, es, cs, fi,
    hr, lt, lv, ro, ru, sk and sl. The splits "train" (over 20,000), "val" and "test"
    (1,000 each) share no text, and every word of the latter two occurs in training. The
    corpus depends only on Babel's version.

    Args:
        name: "multi30k" or "phrases".
        source: Code of the source language, such as "en".
        target: Code of the target language, other than `source`; or a list of codes.
        split: Name of the part.
        data_dir: Folder of the files of "multi30k".

    Returns:
        Two lists of strings, the sources and the targets. For a list of target
        languages, two dicts from the tag of each, such as "<de>", to its list, as
        `translation_batches` takes them.

    Raises:
        ValueError: If there is no such corpus, language or split.
        FileNotFoundError: If `data_dir` does not hold the files.
        OSError: If a file cannot be downloaded, or a download is not the file expected.
        ImportError: For "phrases", if Babel, of the extra `corpora`, is not installed.

    Example:
        >>> sources, targets = load_parallel("phrases", "en", "de", split="test")
        >>> len(sources) == len(targets)
        True
        >>> sorted(load_parallel("phrases", "en", ["de", "fr"], split="test")[0])
        ['<de>', '<fr>']

    Reference:
        Elliott et al. 2016, "Multi30K" (en, de); Elliott et al. 2017 (fr); Barrault
        et al. 2018 (cs). Unicode Common Locale Data Repository.
    """
    if isinstance(target, list | tuple) and target:
        pairs = [load_parallel(name, source, x, split, data_dir) for x in target]
        tags = [f"<{language}>" for language in target]
        sides = [
            dict(zip(tags, side, strict=True)) for side in zip(*pairs, strict=True)
        ]
        return sides[0], sides[1]
    arguments.choice("name", name, tuple(CHOICES))
    arguments.path("data_dir", data_dir, optional=True)
    languages, splits = CHOICES[name]
    for argument, value, options in (
        ("source", source, languages),
        ("target", target, languages),
        ("split", split, splits),
    ):
        arguments.text(argument, value)
        if value not in options:
            arguments.refuse(argument, value, f"one of {options} for {name}")
    if source == target:
        raise ValueError(
            f"`target` must differ from `source`. Received: target={target!r}."
        )
    if name == "multi30k":
        files = (f"{split}.{source}.gz", f"{split}.{target}.gz")
        return read_parallel(*(_multi30k_file(file, data_dir) for file in files))
    sources, targets = zip(*phrase_splits(source, target)[split], strict=True)
    return list(sources), list(targets)


def _multi30k_file(name, data_dir):
    """Returns the path of a file in `data_dir`, or of a download."""
    if data_dir is not None:
        path = pathlib.Path(data_dir) / name
        if not path.is_file():
            raise FileNotFoundError(
                f"`data_dir` must hold {name}, of {MULTI30K_FOLDER} in "
                f"github.com/multi30k/dataset. Received: data_dir={str(data_dir)!r}."
            )
        return path
    address = f"{MULTI30K_ADDRESS}{MULTI30K_FOLDER}{name}"
    try:
        return keras.utils.get_file(
            name,
            address,
            cache_subdir="datasets/multi30k",
            file_hash=MULTI30K_SHA256[name],
            hash_algorithm="sha256",
        )
    except Exception as error:  # get_file raises a bare Exception without a network.
        raise OSError(
            f"Multi30k could not be downloaded: {error} Get its files, such as "
            f"{address}, by other means, and pass their folder as `data_dir`."
        ) from error
