"""A file of values is there whole or not at all."""

import collections
import os
import sys

import numpy as np
import pytest

from keras_seqattn.training.snapshot import (
    is_plain,
    read_snapshot,
    write_snapshot,
)

pytestmark = pytest.mark.backends("torch")

VALUES = {
    "numbers": [1, 2.5, -float("inf"), True, None, "text \u00e9"],
    (1, "b"): (2, [3, (4,)]),
    3: {"array": np.arange(6, dtype="int32").reshape(2, 3)},
    "dict": {"": np.float32(0.1), "empty": {}, "bytes": np.zeros((0, 2), "uint8")},
}


def test_values_come_back(tmp_path):
    path = tmp_path / "state.npz"
    assert is_plain(VALUES)
    write_snapshot(path, VALUES)
    found = read_snapshot(path)
    assert list(found) == list(VALUES)
    assert found["numbers"] == VALUES["numbers"]
    np.testing.assert_array_equal(found[3]["array"], VALUES[3]["array"], strict=True)
    assert found[1, "b"] == (2, [3, (4,)])
    assert found["dict"][""] == float(np.float32(0.1))
    assert found["dict"]["bytes"].shape == (0, 2)
    assert os.listdir(tmp_path) == ["state.npz"]


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04"])
def test_another_file_is_an_error(content, tmp_path):
    path = tmp_path / "state.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="`path` must be .*Received: path=.*state.npz"):
        read_snapshot(path)


def test_a_truncated_file_is_one_error(tmp_path):
    path = tmp_path / "state.npz"
    write_snapshot(path, {"epoch": 3, "weights": [np.arange(50.0), np.ones(3)]})
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(b"NUMPY", whole.index(b"array_0")) + 200] ^= 1
    cuts = np.linspace(0, len(whole) - 1, 12).astype(int)
    for content in (*(whole[:cut] for cut in cuts), flipped):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="of saved values, whole.*state.npz.*read"):
            read_snapshot(path)
    with pytest.raises(ValueError, match="missing.npz', which does not exist"):
        read_snapshot(tmp_path / "missing.npz")


@pytest.mark.parametrize("values", [[], "text", {"seed": 1}])
def test_values_of_another_kind_are_an_error(tmp_path, values):
    write_snapshot(tmp_path / "state.npz", values)
    with pytest.raises(ValueError, match=r"state\.npz.*it (lacks epoch|holds a)"):
        read_snapshot(tmp_path / "state.npz", keys=("seed", "epoch"))


@pytest.mark.parametrize(
    "value",
    [
        *(max, {"a": [object()]}, np.array(["a"]), {1, 2}),
        *(collections.Counter("a"), collections.defaultdict(list), sys.version_info),
        *(np.datetime64("2020-01-01"), np.complex64(1j), np.bytes_(b"a")),
    ],
)
def test_what_is_not_plain(value):
    assert not is_plain(value)
