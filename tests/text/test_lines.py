"""`TextLines`: lines of files of any size, as they are asked for."""

import codecs
import gzip
import json
import os
import shutil

import pytest

from keras_seqattn.text import TextLines

pytestmark = pytest.mark.backends("torch")


def test_lines_are_those_of_the_files(tmp_path):
    plain, packed = tmp_path / "a.en", tmp_path / "b.en.gz"
    plain.write_bytes(b"\xef\xbb\xbfone\r\n\n two\x0bthree\xe2\x80\xa8 \nlast")
    packed.write_bytes(gzip.compress("vier\n\ufefffünf\n".encode()))
    expected = ["one", "", " two\x0bthree\u2028 ", "last", "vier", "\ufefffünf"]
    lines = TextLines([plain, str(packed)])
    for _ in range(2):
        assert list(lines) == expected
    assert list(TextLines(packed)) == expected[4:]


def test_a_file_of_a_byte_order_mark_holds_no_line(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(codecs.BOM_UTF8)
    assert list(TextLines(path)) == []
    path.write_bytes(codecs.BOM_UTF8 + b"\n")
    assert list(TextLines(path)) == [""]


def test_a_carriage_return_alone_ends_no_line(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"a\rb\r\r\nc\r")
    assert list(TextLines(path)) == ["a\rb\r", "c\r"]


def test_a_column_of_columns(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("one\teins\tuno\ntwo\t\tdue\n", "utf-8")
    columns = [list(TextLines(path, column=column)) for column in range(3)]
    assert columns == [["one", "two"], ["eins", ""], ["uno", "due"]]


@pytest.mark.parametrize(
    ("name", "content", "column", "message"),
    [
        ("a.en", b"ok\n\xff\n", None, "must be UTF-8.*a.en', line 2"),
        ("a.en.gz", b"no gzip", None, "named .gz must hold gzip data.*a.en.gz"),
        ("a.tsv", b"a\tb\nc\n", 1, "the `column` 1, .*line 2, with 1: 'c'"),
    ],
)
def test_what_is_no_such_line_is_named(name, content, column, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(TextLines(tmp_path / name, column))


def test_a_truncated_gzip_file_is_named(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(range(32, 127)) * 1000)[:-20])
    with pytest.raises(ValueError, match="must hold gzip data"):
        list(TextLines(path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.en",), "`paths` must be paths of files that exist.*missing.en"),
        (([],), r"`paths` must be paths of files that exist. Received: paths=\[\]"),
        ((3,), "Received: paths=3"),
        ((__file__, -1), "`column` must be .*at least 0.*Received: column=-1"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        TextLines(*arguments)


def test_the_identity_tells_another_file(tmp_path):
    path = tmp_path / "a.en"
    path.write_text("one\n")
    lines = TextLines(path)
    before = json.dumps(lines.identity())
    assert json.dumps(TextLines([path]).identity()) == before
    path.write_text("one\ntwo\n")
    assert json.dumps(lines.identity()) != before
    assert repr(lines) == f"TextLines([{str(path)!r}], column=None)"


def test_the_identity_tells_the_name_the_time_and_the_column(tmp_path):
    """Of files of one size, whose cached token ids are not each other's."""
    path, copy = tmp_path / "a.tsv", tmp_path / "b.tsv"
    path.write_text("one\teins\n")
    shutil.copy2(path, copy)
    found = [TextLines(path, column=column).identity() for column in (None, 0, 1)]
    found.append(TextLines(copy).identity())
    os.utime(path, ns=(0, 0))
    found.append(TextLines(path).identity())
    assert len(set(map(json.dumps, found))) == len(found)
