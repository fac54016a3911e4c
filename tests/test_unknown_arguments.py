"""No public class or function takes a keyword argument that it does not know."""

import pytest

from keras_seqattn import layers
from tests.cases import CASES
from tests.test_bad_arguments import calls

pytestmark = pytest.mark.backends("torch")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(calls()))
def test_no_call_swallows_an_unknown_keyword(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, given = calls()[name]
    with pytest.raises((ValueError, TypeError), match="frobnicate"):
        function(**given, frobnicate=3)


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("layers.EncoderBlock", "drop_out", "dropout"),
        ("layers.MultiHeadAttention", "atention_axes", "attention_axes"),
        ("layers.PositionalEmbedding", "mask_zeros", "mask_zero"),
        ("layers.TokenLogits", "nam", "name"),
        ("text.WordPieceTokenizer", "vocab", "vocabulary"),
        ("decoding.BeamSearch", "widht", "width"),
        ("decoding.Greedy", "min_lenght", "min_length"),
        ("decoding.BeamSearch", "num_beams", "width"),
        ("decoding.BeamSearch", "num_return_sequences", "num_hypotheses"),
        ("layers.PositionalEmbedding", "embedding_dim", "model_dim"),
        ("layers.EncoderBlock", "d_ff", "intermediate_dim"),
    ],
)
def test_layers_and_searches_name_the_nearest_argument(name, wrong, right):
    owner = name.rpartition(".")[2]
    with pytest.raises(
        ValueError,
        match=f"`{wrong}` must be an argument of `{owner}`. Received: {wrong}=3. "
        f"Did you mean `{right}`?",
    ):
        CASES[name][0][0](**{wrong: 3})


def test_a_layer_says_that_an_argument_is_one_of_its_call():
    with pytest.raises(
        ValueError,
        match="`use_causal_mask` must be given when the layer is called, not to "
        "`MultiHeadAttention`. Received: use_causal_mask=True.",
    ):
        layers.MultiHeadAttention(2, 8, use_causal_mask=True)


@pytest.mark.parametrize("name", [name for name in CASES if name[:7] == "models."])
def test_a_model_names_the_nearest_argument(name):
    make, _ = CASES[name][0]
    with pytest.raises(
        ValueError,
        match=f"`drop_out` must be an argument of `{name[7:]}`. "
        "Received: drop_out=0.3. Did you mean `dropout`?",
    ):
        make(drop_out=0.3)


@pytest.mark.parametrize("name", [name for name in CASES if name[:7] == "models."])
def test_a_model_s_configuration_is_refused_like_its_arguments(name):
    model = CASES[name][0][0](trainable=False, name="frozen")
    assert (model.trainable, model.name) == (False, "frozen")
    config = model.get_config()
    with pytest.raises(ValueError, match="`num_head` must.*Received: num_head=2"):
        type(model).from_config({**config, "num_head": 2})
