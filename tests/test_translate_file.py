"""Files are translated block by block; a stop loses at most one of them."""

import gzip
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import keras_seqattn as ks
from keras_seqattn import files
from keras_seqattn.sentence_attention import AttentionWeights
from tests.small import translation_model

pytestmark = pytest.mark.backends("torch")

ROOT = pathlib.Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "translate_file.py"
LINES = [f"{number} red dogs" if number % 7 else "" for number in range(50)]


class Stub:
    """Translates to upper case; stops where it is told to, as Ctrl-C would."""

    def __init__(self):
        self.given, self.stop_at, self.search = [], None, None

    def __call__(self, lines):
        if self.stop_at is not None and len(self.given) + len(lines) > self.stop_at:
            raise KeyboardInterrupt
        self.given += lines
        return [line.upper() for line in lines]

    def translate(self, lines, num_hypotheses=1, glossary=None):
        self.glossary = glossary
        return [
            [
                (f"{text}\u2028{n}" if line else "", -float(n))
                for n in range(num_hypotheses)
            ]
            for line, text in zip(lines, self(lines), strict=True)
        ]


@pytest.fixture
def example(load_example):
    """The script as a module."""
    return load_example("translate_file")


@pytest.fixture
def run(example, monkeypatch, tmp_path):
    """Runs the script on `input.txt` with a stub for a translator."""
    (tmp_path / "input.txt").write_text("".join(f"{line}\n" for line in LINES))
    (tmp_path / "translator.keras").write_bytes(b"weights")

    def run(*options, source="input.txt", output="output.txt", stop_at=None):
        stub = Stub()
        stub.stop_at = stop_at
        monkeypatch.setattr(ks.Translator, "load", lambda path: stub)
        paths = [str(tmp_path / name) for name in (source, output)]
        translator = ["--translator", str(tmp_path / "translator.keras")]
        argv = ["translate_file.py", *paths, *translator, "--block", "8", *options]
        monkeypatch.setattr(sys, "argv", argv)
        example.main()
        return stub

    return run


def translations(path):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")[:-1]


UPPER = [line.upper() for line in LINES]


@pytest.mark.parametrize("output", ["output.txt", "output.txt.gz"])
def test_a_stop_loses_at_most_one_block(run, tmp_path, capsys, output):
    for stop_at, done in ((13, 8), (1, 8), (33, 40)):
        with pytest.raises(KeyboardInterrupt):
            run(output=output, stop_at=stop_at)
        assert not (tmp_path / output).exists()
        part = tmp_path / f"{output}.part"
        progress = json.loads((tmp_path / f"{output}.json").read_text())
        assert (progress["lines"], progress["bytes"]) == (done, part.stat().st_size)
        with open(part, "ab") as file:  # What a kill in the middle of a write leaves.
            file.write(b"half a li")
    capsys.readouterr()
    stub = run(output=output)
    assert "Going on after line 40 of 50." in capsys.readouterr().out
    assert stub.given == LINES[40:]
    assert translations(tmp_path / output) == UPPER
    assert {path.name for path in tmp_path.glob("output*")} == {
        output,
        f"{output}.json",
    }


def test_n_best_lists_are_numbered_scored_and_resumed(run, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run("--n-best", "2", stop_at=20)
    with pytest.raises(SystemExit, match="with other n-best;"):
        run("--n-best", "3")
    assert run("--n-best", "2").given == LINES[16:]
    written = translations(tmp_path / "output.txt")
    assert written[:4] == [
        "0 |||  ||| -0.000000",
        "0 |||  ||| -1.000000",
        "1 ||| 1 RED DOGS 0 ||| -0.000000",
        "1 ||| 1 RED DOGS 1 ||| -1.000000",
    ]
    assert written[-1] == "49 |||  ||| -1.000000"
    assert len(written) == 2 * len(LINES)


def test_an_output_of_an_older_version_goes_on(run, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(stop_at=20)
    path = tmp_path / "output.txt.json"
    progress = json.loads(path.read_text())
    for option in ("n-best", "alignments"):
        del progress["run"][option]
    path.write_text(json.dumps(progress))
    assert run().given == LINES[16:]


def test_a_finished_output_is_only_reported(run, tmp_path, capsys):
    run()
    assert f"50 lines -> {tmp_path / 'output.txt'}" in capsys.readouterr().out
    assert run().given == []
    assert "Already translated" in capsys.readouterr().out
    assert translations(tmp_path / "output.txt") == UPPER


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("changed", ["input", "translator", "beam"])
def test_another_run_s_output_is_an_error(run, tmp_path, changed, finished):
    if finished:
        run()
    else:
        with pytest.raises(KeyboardInterrupt):
            run(stop_at=20)
    if changed == "input":
        (tmp_path / "input.txt").write_text("a\n" * 50)
    elif changed == "translator":
        (tmp_path / "translator.keras").write_bytes(b"other weights")
    before = {path: path.read_bytes() for path in tmp_path.glob("output*")}
    options = ("--beam", "2") if changed == "beam" else ()
    message = (
        r"`output` must be new, or of the same work\. Received: output='/\S+', with "
        rf"other {changed}; delete it and output\.txt\.json to begin anew\."
    )
    with pytest.raises(SystemExit, match=message):
        run(*options)
    assert {path: path.read_bytes() for path in tmp_path.glob("output*")} == before


def test_what_the_script_did_not_write_is_left_alone(run, tmp_path):
    (tmp_path / "output.txt").write_text("precious\n")
    with pytest.raises(SystemExit, match="`output` must not exist yet. Received: "):
        run()
    assert (tmp_path / "output.txt").read_text() == "precious\n"


def test_a_part_that_was_changed_is_an_error(run, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(stop_at=20)
    (tmp_path / "output.txt.part").write_bytes(b"a\n")
    with pytest.raises(SystemExit, match=r"must be whole, of \d+ bytes.*of 2;"):
        run()


def test_two_runs_do_not_write_one_output(run, example, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(stop_at=20)
    progress = json.loads((tmp_path / "output.txt.json").read_text())
    journal = example.journal_of(tmp_path / "output.txt", progress["run"])
    with ThreadPoolExecutor(1) as other:  # It does not hold what its own thread holds.
        other.submit(journal.__enter__).result()
        with pytest.raises(SystemExit, match="in use by process .* thread"):
            run()
        other.submit(journal.__exit__).result()
    run()
    assert translations(tmp_path / "output.txt") == UPPER


def test_the_lock_is_released_before_it_is_deleted(run, monkeypatch, tmp_path):
    """Windows refuses to delete a file that is open."""
    unlink = pathlib.Path.unlink

    def unlink_closed(path, missing_ok=False):
        assert path.resolve() not in files._HELD
        unlink(path, missing_ok)

    monkeypatch.setattr(pathlib.Path, "unlink", unlink_closed)
    run()
    names = {path.name for path in tmp_path.glob("output*")}
    assert names == {"output.txt", "output.txt.json"}


def test_lines_end_at_line_feeds_alone(run, tmp_path):
    """Other line breaks are text; those in a translation become spaces."""
    text = "a\u2028b\r\n\r\nc\x0bd".encode()
    with gzip.open(tmp_path / "input.txt.gz", "wb") as file:
        file.write(text)
    assert run(source="input.txt.gz").given == ["a\u2028b", "", "c\x0bd"]
    assert translations(tmp_path / "output.txt") == ["A B", "", "C D"]


def test_an_empty_file_gives_an_empty_file(run, tmp_path):
    (tmp_path / "input.txt").write_text("")
    run()
    assert translations(tmp_path / "output.txt") == []


def test_an_empty_gzip_file_is_one(run, tmp_path):
    (tmp_path / "input.txt").write_text("")
    run(output="output.txt.gz")
    assert gzip.decompress((tmp_path / "output.txt.gz").read_bytes()) == b""
    assert (tmp_path / "output.txt.gz").stat().st_size


def test_a_byte_order_mark_is_no_text(run, tmp_path):
    (tmp_path / "input.txt").write_text("\ufeffa\n\ufeffb\n", "utf-8")
    assert run().given == ["a", "\ufeffb"]


def test_a_line_that_is_not_utf_8_is_told_before_anything_is_done(run, tmp_path):
    (tmp_path / "input.txt").write_bytes(b"a\nb\xff\n")
    with pytest.raises(SystemExit, match="`input` must be UTF-8.*in line 2"):
        run()
    assert not list(tmp_path.glob("output*"))


@pytest.mark.parametrize("size", [20, 0])
def test_a_damaged_gzip_file_is_told_before_anything_is_done(run, tmp_path, size):
    data = gzip.compress(b"one\n" * 99)[:size] or b"one\n"
    (tmp_path / "input.gz").write_bytes(data)
    with pytest.raises(SystemExit, match="named .gz must hold gzip data.*input.gz"):
        run(source="input.gz")
    assert not list(tmp_path.glob("output*"))


def test_a_folder_without_a_name_is_no_output(example, monkeypatch, tmp_path, capsys):
    (tmp_path / "file").touch()
    argv = [
        "translate_file.py",
        tmp_path / "file",
        ".",
        "--translator",
        tmp_path / "file",
    ]
    monkeypatch.setattr(sys, "argv", list(map(str, argv)))
    with pytest.raises(SystemExit):
        example.main()
    assert "`output` must be a file. Received: ." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "search"),
    [
        ((), None),
        (("--beam", "1"), ks.decoding.Greedy()),
        (("--beam", "5"), ks.decoding.BeamSearch(width=5)),
    ],
)
def test_the_search_is_the_translator_s_unless_beams_are_given(run, options, search):
    stub = run(*options)
    assert stub.search == search


@pytest.mark.parametrize("width", [1, 4])
def test_beams_are_of_the_translator_s_own_search(load_example, width):
    with_beams = load_example("beams").with_beams
    own = {"banned_ids": (7,), "min_length": 2}
    given = ks.decoding.BeamSearch(2, length_penalty=1.3, num_groups=2, **own)
    search = with_beams(given, width, num_hypotheses=width)
    assert (search.banned_ids, search.min_length, search.width) == ((7,), 2, width)
    assert search.num_hypotheses == width
    if width > 1:
        assert (search.length_penalty, search.num_groups) == (1.3, 1)
    search = with_beams(ks.decoding.Greedy(**own), width)
    assert (search.banned_ids, search.min_length, search.width) == ((7,), 2, width)
    assert with_beams(None, width).width == width


def test_a_glossary_is_a_file_of_pairs(run, tmp_path):
    path = tmp_path / "glossary.tsv"
    path.write_text("red\trot\n")
    assert run("--glossary", str(path)).glossary == path
    assert len(translations(tmp_path / "output.txt")) == len(LINES)
    path.write_text("red\tblau\n")
    with pytest.raises(SystemExit, match=r"output\.txt', with other glossary; delete"):
        run("--glossary", str(path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--glossary", "none.tsv"), "`glossary` must be a file. Received: none.tsv"),
        (("--beam", "0"), "--beam: must be a positive integer. Received: 0"),
        (("--n-best", "0"), "--n-best: must be a positive integer. Received: 0"),
        (("--block", "-1"), "--block: must be a positive integer. Received: -1"),
        (("--translator", "none.keras"), "`translator` must be a file. Received: none"),
    ],
)
def test_wrong_arguments_are_errors(run, capsys, options, message):
    with pytest.raises(SystemExit):
        run(*options)
    assert message in capsys.readouterr().err


@pytest.fixture
def saved(tmp_path):
    """A small translator in a file."""
    tokenizer = ks.text.ByteTokenizer()
    model = translation_model(tokenizer.vocabulary_size, max_length=16)
    ks.Translator(model, tokenizer).save(tmp_path / "small.keras")
    return tmp_path / "small.keras"


def command(tmp_path, saved, output):
    (tmp_path / "input.txt").write_text("".join(f"{line}\n" for line in LINES * 4))
    paths = tmp_path / "input.txt", tmp_path / output
    return [sys.executable, SCRIPT, *paths, "--translator", saved, "--block", "16"]


def test_a_translator_translates_a_file(example, monkeypatch, tmp_path, saved):
    argv = command(tmp_path, saved, "output.txt")[1:]
    (tmp_path / "input.txt").write_text("".join(f"{line}\n" for line in LINES))
    monkeypatch.setattr(sys, "argv", list(map(str, argv)))
    example.main()
    expected = ks.Translator.load(saved)(LINES)
    assert translations(tmp_path / "output.txt") == [
        " ".join(line.splitlines()) for line in expected
    ]


class Looking:
    """Looks from each letter of the target at the letter of the source below it."""

    source_tokenizer = target_tokenizer = ks.text.ByteTokenizer()

    def attention(self, source, target):
        weights = np.eye(len(target.encode()) + 1, len(source.encode()) + 1)
        return AttentionWeights(None, None, weights[None, None])


@pytest.mark.parametrize(
    ("source", "target", "links"),
    [
        ("one two", "one two", "0-0 1-1"),
        ("a bc defg", "ab cdefg", "0-0 2-1"),
        ("  é wörd", " é  wörd", "0-0 1-1"),
        ("one", "", ""),
        (" ", "one", ""),
    ],
)
def test_words_are_aligned_by_their_tokens(example, source, target, links):
    assert example.alignment(Looking(), source, target) == links


def test_words_are_those_of_the_line_whatever_the_tokenizer_makes_of_it(example):
    """Word pieces set off punctuation, and SentencePiece loses unknown characters."""
    lines = ["dogs, cats run", "dogs run"] * 20
    word_piece = ks.text.WordPieceTokenizer.train(lines, vocabulary_size=60)
    (ids,) = word_piece.tokenize(["dogs, cats"])
    found = example.words(word_piece, "dogs, cats", len(ids) + 1)
    assert found[0] == 0 and found[-2:] == [1, -1]
    assert sorted(set(found)) == [-1, 0, 1]


def test_words_before_a_line_are_not_its_own(example):
    class Prefixed(ks.text.ByteTokenizer):
        text_prefix = "say so: "

        def tokenize(self, lines, **options):
            return super().tokenize([self.text_prefix + x for x in lines], **options)

    class LookingPast(Looking):
        source_tokenizer = Prefixed()

        def attention(self, source, target):
            first = len(Prefixed.text_prefix)
            shape = len(target) + 1, first + len(source) + 1
            return AttentionWeights(None, None, np.eye(*shape, first)[None, None])

    assert example.alignment(LookingPast(), "a bc defg", "ab cdefg") == "0-0 2-1"


def test_words_of_a_very_long_line_are_only_those_that_were_read(example):
    class Counting(ks.text.ByteTokenizer):
        def tokenize(self, lines, **options):
            assert len(lines) < 20
            return super().tokenize(lines, **options)

    found = example.words(Counting(), "a b " * 1000, 6)
    assert found == [0, 1, 1, 2, 2, -1]  # "a", " b", " a" and the end


def test_a_warning_says_which_line_of_the_input_it_is(
    example, monkeypatch, tmp_path, saved, capsys
):
    argv = [*command(tmp_path, saved, "output.txt")[1:], "--block", "2"]
    (tmp_path / "long.tsv").write_text("red\t" + "x " * 500 + "\n")
    argv += ["--glossary", tmp_path / "long.tsv"]
    (tmp_path / "input.txt").write_text("one\nred\none\nred\nred\n")
    monkeypatch.setattr(sys, "argv", list(map(str, argv)))
    example.main()
    assert len(translations(tmp_path / "output.txt")) == 5
    out = capsys.readouterr().out
    for first, index in ((1, 1), (3, 1), (5, 0)):
        assert f"lines[{index}]. (lines[0] is line {first} of the input.)" in out


def test_a_search_that_cannot_force_phrases_gives_way_to_beams(
    example, monkeypatch, tmp_path, saved
):
    translator = ks.Translator.load(saved)
    translator.search = ks.decoding.Sample(seed=1)
    translator.save(saved)
    argv = [*command(tmp_path, saved, "output.txt")[1:], "--beam", "2"]
    (tmp_path / "pairs.tsv").write_text("red\tx\n")
    argv += ["--glossary", tmp_path / "pairs.tsv"]
    (tmp_path / "input.txt").write_text("red\n")
    monkeypatch.setattr(sys, "argv", list(map(str, argv)))
    example.main()
    assert "x" in translations(tmp_path / "output.txt")[0]


def test_alignments_need_a_single_model(example, monkeypatch, tmp_path, saved):
    translator = ks.Translator.load(saved)
    both = ks.decoding.Ensemble([translator.model] * 2)
    ks.Translator(both, translator.source_tokenizer).save(saved)
    argv = [*command(tmp_path, saved, "output.txt")[1:], "--alignments"]
    monkeypatch.setattr(sys, "argv", list(map(str, argv)))
    with pytest.raises(SystemExit, match="`model` must be a single model"):
        example.main()
    assert not list(tmp_path.glob("output.txt*"))


def test_a_wrong_glossary_is_told_before_anything_is_written(
    example, monkeypatch, tmp_path, saved
):
    argv = command(tmp_path, saved, "output.txt")[1:]
    (tmp_path / "wrong.tsv").write_text("red\n")
    monkeypatch.setattr(
        sys, "argv", [*map(str, argv), "--glossary", str(tmp_path / "wrong.tsv")]
    )
    with pytest.raises(SystemExit) as caught:
        example.main()
    assert "wrong.tsv" in str(caught.value) and "Line 0" not in str(caught.value)
    assert not list(tmp_path.glob("output.txt*"))


@pytest.mark.parametrize("n_best", [(), ("--n-best", "2")])
def test_alignments_stand_beside_translations(
    example, monkeypatch, tmp_path, saved, n_best, capsys
):
    argv = [*command(tmp_path, saved, "output.txt")[1:], "--alignments", *n_best]
    (tmp_path / "input.txt").write_text("one two\n\n" + "long " * 9 + "\n")
    monkeypatch.setattr(sys, "argv", list(map(str, argv)))
    example.main()
    assert "longer than" in capsys.readouterr().out
    columns = [line.split(" ||| ") for line in translations(tmp_path / "output.txt")]
    assert {len(row) for row in columns} == {4 if n_best else 2}
    assert len(columns) == (5 if n_best else 3)
    for row in columns:
        text, links = row[1 if n_best else 0], row[-1].split()
        assert [int(link.split("-")[1]) for link in links] == [
            *range(len(text.split()))
        ]


@pytest.mark.slow
def test_a_kill_changes_nothing(monkeypatch, tmp_path, saved):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    subprocess.run(command(tmp_path, saved, "whole.txt"), check=True)
    again = command(tmp_path, saved, "killed.txt.gz")
    part = tmp_path / "killed.txt.gz.part"
    with subprocess.Popen(again, stdout=subprocess.DEVNULL) as process:
        while not part.exists() or not part.stat().st_size:
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert not (tmp_path / "killed.txt.gz").exists()
    done = subprocess.run(again, capture_output=True, text=True, check=True)
    assert "Going on after line" in done.stdout
    assert translations(tmp_path / "killed.txt.gz") == translations(
        tmp_path / "whole.txt"
    )
