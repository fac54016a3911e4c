import functools
import gzip
import pickle

import keras
import pytest

from keras_seqattn.text import (
    TextLines,
    corpora,
    load_parallel,
    read_parallel,
    read_tsv,
)

pytestmark = pytest.mark.backends("tensorflow")

LINES = ["One, two.", "  three  \u2028 \x0b four\u0085", "", "fünf"]


def write(path, content):
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("suffix", ["txt", "gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_only_newlines_end_a_line(tmp_path, suffix, end, last):
    content = end.join(LINES) + (end if last else "")
    path = write(tmp_path / f"lines.{suffix}", content)
    assert read_parallel(path, str(path)) == (LINES, LINES)


@pytest.mark.parametrize("suffix", ["tsv", "gz"])
def test_tsv(tmp_path, suffix):
    path = write(tmp_path / f"pairs.{suffix}", "a b\tc \n\t\u2028d\r\n")
    assert read_tsv(path) == (["a b", ""], ["c ", "\u2028d"])


def test_unequal_line_counts(tmp_path):
    source = write(tmp_path / "a.txt", "1\n2\n")
    target = write(tmp_path / "b.txt", "1\n2\n\n")
    with pytest.raises(ValueError, match=r"a.txt' with 2 lines, .*b.txt' with 3"):
        read_parallel(source, target)


@pytest.mark.parametrize("read", [read_tsv, lambda path: read_parallel(path, path)])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", r"must hold lines.*empty.txt"),
        ("empty.gz", b"", r"must hold lines.*empty.gz"),
        ("bad.txt", b"a\tb\nc\xff\td\n", r"must be UTF-8.*bad.txt', line 2.*0xff"),
        ("bad.gz", b"a\xc3", r"must be UTF-8.*bad.gz', line 1"),
    ],
)
def test_bad_files(tmp_path, read, name, content, message):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path / name, content))


def test_bad_gzip(tmp_path):
    path = tmp_path / "cut.gz"
    for content in (b"no gzip", gzip.compress(b"text")[:-9]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"must hold gzip data.*cut.gz"):
            read_tsv(path)


@pytest.mark.parametrize(("line", "columns"), [("a", 1), ("a\tb\tc", 3)])
def test_bad_columns(tmp_path, line, columns):
    path = write(tmp_path / "pairs.tsv", f"a\tb\n{line}\n")
    with pytest.raises(
        ValueError, match=rf"two columns.*skip_malformed.*line 2, with {columns}"
    ):
        read_tsv(path)


def test_an_error_shows_only_the_beginning_of_a_long_line(tmp_path):
    path = tmp_path / "old_mac.tsv"
    path.write_bytes(b"a\tb\r" * 9999)  # one line for us
    for read in (lambda: read_tsv(path), lambda: list(TextLines(path, column=10**4))):
        with pytest.raises(
            ValueError, match=r"line 1, with 10000.* \.\.\.\.$"
        ) as found:
            read()
        assert len(str(found.value)) < 2000


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.gz"])
def test_a_byte_order_mark_is_no_text(tmp_path, name):
    path = write(tmp_path / name, "\ufeffa\t\ufeffb\n")
    assert read_tsv(path) == (["a"], ["\ufeffb"])  # Only the first is a mark.
    assert read_parallel(path, path) == (["a\t\ufeffb"], ["a\t\ufeffb"])
    with pytest.raises(ValueError, match=r"must hold lines.*mark.txt"):
        read_tsv(write(tmp_path / "mark.txt", "\ufeff"))


ROWS = "a\tA\n\nb\t \na\tA\nc\tC\tnote\nlone\nd\tD\na\tother\n"


def test_tsv_leaves_out_what_it_is_told_to_and_reports_it(tmp_path):
    path = write(tmp_path / "pairs.tsv", ROWS.encode() + b"\xff\tx\n")
    options = ("skip_empty", "skip_duplicates", "skip_malformed")
    pairs = read_tsv(path, **dict.fromkeys(options, True))
    assert pairs == (["a", "d", "a"], ["A", "D", "other"])
    assert pairs.num_lines == 9
    assert pairs.found == {"malformed": [5, 6, 9], "empty": [2, 3], "duplicate": [4]}
    assert pairs.report == (
        "3 pairs of 9 lines; left out: 3 malformed (lines 5, 6, 9), "
        "2 empty (lines 2, 3), 1 duplicate (line 4)"
    )
    pairs = read_tsv(path, skip_malformed=True)
    assert pairs == (["a", "b", "a", "d", "a"], ["A", " ", "A", "D", "other"])
    assert pairs.report == (
        "5 pairs of 9 lines; left out: 4 malformed (lines 2, 5, 6, ...); "
        "kept: 1 empty (line 3), 1 duplicate (line 4)"
    )


def test_tsv_takes_chosen_columns(tmp_path):
    path = write(tmp_path / "pairs.tsv", "1\ta\tA\n2\tb\tB\textra\n")
    assert read_tsv(path, columns=(2, 1)) == (["A", "B"], ["a", "b"])
    assert read_tsv(path, columns=[1, 0]).report == "2 pairs of 2 lines"
    message = r"`columns` \(0, 3\), .*pairs.tsv', line 1, with 3: \['1', 'a', 'A'\]"
    with pytest.raises(ValueError, match=message):
        read_tsv(path, columns=(0, 3))
    with pytest.raises(ValueError, match="two columns .* by `columns`.*line 1, with 3"):
        read_tsv(path)


def test_a_header_is_no_pair(tmp_path):
    path = write(tmp_path / "pairs.tsv", "\ufeffen\tde\na\tA\nlone\n")
    pairs = read_tsv(path, header=True, skip_malformed=True)
    assert pairs == (["a"], ["A"])
    assert pairs.report == "1 pairs of 3 lines; left out: 1 malformed (line 3)"
    with pytest.raises(ValueError, match="hold pairs.*, 0 pairs of 1 lines"):
        read_tsv(write(tmp_path / "header.tsv", "en\tde\n"), header=True)


def test_parallel_files_leave_out_pairs(tmp_path):
    source = write(tmp_path / "a.txt", b"\xef\xbb\xbfa\nb\n\na\n\xff\nc\n")
    target = write(tmp_path / "b.txt", "A\nB\nC\nA\nx\n\n")
    with pytest.raises(ValueError, match=r"must be UTF-8.*a.txt', line 5"):
        read_parallel(source, target)
    pairs = read_parallel(source, target, skip_malformed=True)
    assert pairs == (["a", "b", "", "a", "c"], ["A", "B", "C", "A", ""])
    pairs = read_parallel(
        source, target, skip_empty=True, skip_duplicates=True, skip_malformed=True
    )
    assert pairs == (["a", "b"], ["A", "B"])
    assert pairs.found == {"malformed": [5], "empty": [3, 6], "duplicate": [4]}


def test_a_duplicate_may_be_half_empty(tmp_path):
    path = write(tmp_path / "pairs.tsv", "a\t\na\t\nb\tB\n")
    pairs = read_tsv(path, skip_duplicates=True)
    assert pairs == (["a", "b"], ["", "B"])
    assert pairs.found == {"malformed": [], "empty": [1], "duplicate": [2]}
    assert read_tsv(path).found == {"malformed": [], "empty": [1, 2], "duplicate": []}


def test_a_report_travels(tmp_path):
    pairs = read_tsv(write(tmp_path / "pairs.tsv", "a\tA\na\tA\n"))
    again = pickle.loads(pickle.dumps(pairs))
    assert again == pairs == (["a", "a"], ["A", "A"])
    assert (
        again.report
        == pairs.report
        == ("2 pairs of 2 lines; kept: 1 duplicate (line 2)")
    )


def test_nothing_left_is_an_error_that_says_why(tmp_path):
    path = write(tmp_path / "pairs.tsv", "\n \t\nx\n")
    message = r"must hold pairs.*pairs.tsv', 0 pairs of 3 lines; left out: 1 malformed"
    with pytest.raises(ValueError, match=message):
        read_tsv(path, skip_empty=True, skip_malformed=True)


@pytest.mark.parametrize("columns", [(0,), (0, 1, 2), 1, "01", (0, -1), (0, True)])
def test_bad_column_numbers(tmp_path, columns):
    path = write(tmp_path / "pairs.tsv", "a\tb\n")
    with pytest.raises(ValueError, match="`columns` must be .*Received: columns="):
        read_tsv(path, columns=columns)


@pytest.mark.parametrize("option", ["skip_empty", "skip_duplicates", "skip_malformed"])
def test_bad_switches(tmp_path, option):
    path = write(tmp_path / "pairs.tsv", "a\tb\n")
    with pytest.raises(ValueError, match=f"`{option}` must be True or False.*=1"):
        read_tsv(path, **{option: 1})
    with pytest.raises(ValueError, match=f"`{option}` must be True or False.*=1"):
        read_parallel(path, path, **{option: 1})


@pytest.fixture
def files(tmp_path):
    for split in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de", "fr", "cs"):
            lines = f"{split} {language} 1\n{split} {language} 2\n"
            write(tmp_path / f"{split}.{language}.gz", lines)
    return tmp_path


@pytest.mark.parametrize("split", ["train", "val", "test_2016_flickr"])
def test_multi30k_from_a_folder(files, split):
    sources, targets = load_parallel("multi30k", "en", "cs", split, data_dir=files)
    assert sources == [f"{split} en 1", f"{split} en 2"]
    assert targets == [f"{split} cs 1", f"{split} cs 2"]


def test_several_targets_have_their_tags(files):
    pairs = load_parallel("multi30k", "en", ["fr", "cs"], "val", data_dir=files)
    assert pairs == tuple(
        {
            f"<{target}>": [f"val {language} 1", f"val {language} 2"]
            for target, language in sides.items()
        }
        for sides in ({"fr": "en", "cs": "en"}, {"fr": "fr", "cs": "cs"})
    )


def test_multi30k_lacks_a_file(files):
    (files / "val.de.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"must hold val.de.gz, .*data_dir='/"):
        load_parallel("multi30k", "de", "en", "val", data_dir=files)


def test_multi30k_is_downloaded_and_checked(files, monkeypatch):
    asked = {}

    def get_file(fname, origin, cache_subdir, file_hash, hash_algorithm):
        asked[origin] = (file_hash, hash_algorithm)
        return str(files / fname)

    monkeypatch.setattr(keras.utils, "get_file", get_file)
    assert load_parallel("multi30k", "de", "en") == (
        ["train de 1", "train de 2"],
        ["train en 1", "train en 2"],
    )
    folder = "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d/data/task1/raw"
    assert asked == {
        f"{folder}/{name}": (corpora.MULTI30K_SHA256[name], "sha256")
        for name in ("train.de.gz", "train.en.gz")
    }


def test_every_file_of_multi30k_has_its_sum():
    languages, splits = corpora.CHOICES["multi30k"]
    names = {f"{split}.{language}.gz" for split in splits for language in languages}
    assert set(corpora.MULTI30K_SHA256) == names
    assert len(set(corpora.MULTI30K_SHA256.values())) == 12
    assert {len(digest) for digest in corpora.MULTI30K_SHA256.values()} == {64}


def test_without_a_network_it_says_what_to_do(monkeypatch):
    def get_file(*arguments, **options):
        raise Exception("URL fetch failure")

    monkeypatch.setattr(keras.utils, "get_file", get_file)
    with pytest.raises(OSError, match=r"URL fetch failure.*train.de.gz.*`data_dir`"):
        load_parallel("multi30k", "de", "en")


def test_a_file_with_another_sum_is_refused(files, monkeypatch):
    get_file = functools.partial(keras.utils.get_file, cache_dir=files / "cache")
    monkeypatch.setattr(keras.utils, "get_file", get_file)
    monkeypatch.setattr(corpora, "MULTI30K_ADDRESS", f"{files.as_uri()}/")
    monkeypatch.setattr(corpora, "MULTI30K_FOLDER", "")
    with pytest.raises(OSError, match=r"downloaded: Incomplete or corrupted.*data_dir"):
        load_parallel("multi30k", "de", "en")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("wmt", "en", "de"), r"`name` must be one of .*name='wmt'"),
        (("multi30k", "en", "es"), r"`target` must be one of .*target='es'"),
        (("multi30k", "xx", "de"), r"`source` must be one of .*source='xx'"),
        (("phrases", 3, "de"), "`source` must be a string. Received: source=3"),
        (("multi30k", "en", "en"), r"`target` must differ.*target='en'"),
        (("multi30k", "en", "de", "test"), r"`split` must be one of.*split='test'"),
        (("phrases", "en", "xx"), r"`target` must be one of .*target='xx'"),
        (("phrases", "de", "de"), r"`target` must differ.*target='de'"),
        (("phrases", "en", "de", "dev"), r"`split` must be one of.*split='dev'"),
    ],
)
def test_bad_names(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_parallel(*arguments)
