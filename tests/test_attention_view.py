"""The page of attention says the weights, runs nothing it is given, and is browsed."""

import base64
import html.parser
import json
import re

import numpy as np
import pytest

from keras_seqattn import plotting
from keras_seqattn.plotting import fonts
from keras_seqattn.plotting.tokens import readable
from keras_seqattn.sentence_attention import AttentionWeights

pytestmark = pytest.mark.backends("torch")

HOSTILE = [
    "</script><script>window.attacked = 1</script>",
    "<!--<script>",
    "\u2028'\"&lt;`${window.attacked = 1}\\",
    "<img src=x onerror='window.attacked = 1'>",
]
SOURCE = ["▁A", "▁dog", "\n", *HOSTILE]
TARGET = ["▁Ein", "▁Hund", "</s>"]


def softmax(rng, *shape):
    exponentials = np.exp(2 * rng.normal(size=shape))
    return exponentials / exponentials.sum(-1, keepdims=True)


class Page(html.parser.HTMLParser):
    """Collects the elements of a page, and the texts in them, as a browser would."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts = [("", {})], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append((self.tags[-1][0], data))

    def data(self):
        return json.loads(
            next(text for tag, text in self.texts if text[:8] == '{"shape"')
        )


@pytest.mark.parametrize("leading", [(), (2,), (3, 2)])
def test_the_page_holds_the_weights_and_the_tokens(rng, leading):
    weights = softmax(rng, *leading, len(TARGET), len(SOURCE))
    data = Page(plotting.attention_html(weights, SOURCE, TARGET)).data()
    steps = np.frombuffer(base64.b64decode(data["weights"]), "uint8")
    expected = weights.reshape((1,) * (2 - len(leading)) + weights.shape)
    assert tuple(data["shape"]) == expected.shape
    np.testing.assert_allclose(
        steps.reshape(expected.shape) / 255, expected, atol=0.5 / 255 + 1e-6
    )
    assert data["source"] == readable(SOURCE)
    assert data["source"][:3] == ["␣A", "␣dog", r"\n"]
    assert data["target"] == ["␣Ein", "␣Hund", "</s>"]


def test_a_weight_that_16_bits_round_to_more_than_1_is_1():
    page = plotting.attention_html(np.array([[1.004, 0.0]]), ["a", "b"], ["c"])
    assert base64.b64decode(Page(page).data()["weights"]) == bytes([255, 0])


def test_it_takes_what_a_translator_gives(rng):
    given = AttentionWeights(["a", "</s>"], TARGET, softmax(rng, 2, 4, 3, 2))
    page = plotting.attention_html(given)
    assert page == plotting.attention_html(given.weights, ["a", "</s>"], TARGET)
    assert len(plotting.attention_map(given).axes) == 2 * 4 + 1


def test_nothing_given_becomes_an_element_and_nothing_is_loaded(rng):
    title = "</title><script>attacked()</script> ü"
    weights = softmax(rng, 1, 1, 3, len(SOURCE))
    page = Page(plotting.attention_html(weights, SOURCE, TARGET, title))
    plain = Page(plotting.attention_html(weights, ["a"] * len(SOURCE), TARGET, "b"))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert ("title", title) in page.texts
    assert page.data()["source"] == readable(SOURCE)
    names = {name for _, attributes in page.tags for name in attributes}
    assert not names & {"src", "href", "srcset", "action", "style", "onclick"}
    (policy,) = (
        attributes["content"]
        for tag, attributes in page.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    assert plotting.attention_html(weights, SOURCE, TARGET, title).isascii()


def test_twelve_layers_of_sixteen_heads_fit_a_small_file(rng):
    names = [f"token{i}" for i in range(64)]
    page = plotting.attention_html(softmax(rng, 12, 16, 64, 64), names, names)
    assert len(page) < 1.1 * 2**20


@pytest.mark.parametrize("draw", [plotting.attention_html, plotting.attention_map])
@pytest.mark.parametrize("shape", [(5, 3), (3,), (1, 1, 1, 3, 7), (2, 3, 4)])
def test_weights_of_another_shape_are_an_error(draw, shape):
    message = rf"`weights` must have .*\(3, 7\).*Received: weights.shape=\({shape[0]}"
    with pytest.raises(ValueError, match=message):
        draw(np.zeros(shape), SOURCE, TARGET)


@pytest.mark.parametrize("draw", [plotting.attention_html, plotting.attention_map])
@pytest.mark.parametrize("wrong", [np.nan, -0.5, 1.5])
def test_what_is_no_weight_is_an_error(draw, wrong):
    weights = np.full((3, 7), 0.1)
    weights[1, 2] = wrong
    message = re.escape(f"Received: a weight of {wrong}.")
    with pytest.raises(ValueError, match=rf"`weights` must be in \[0, 1\].*{message}"):
        draw(weights, SOURCE, TARGET)


def test_labels_of_any_script_are_drawn_without_a_warning(tmp_path):
    """A font that has a glyph serves; without one, the escape is drawn."""
    tokens = ["犬", "собака", "कुत्ता", "🐶", "\U0010fffd"]
    title = "犬\n\U0010fffd"
    figure = plotting.attention_map(np.full((5, 5), 0.2), tokens, tokens, title)
    figure.savefig(tmp_path / "map.png")
    lines = figure.get_suptitle().split("\n")
    assert lines[0] in ("犬", r"\u72ac")
    assert lines[1] == r"\U0010fffd"
    labels = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    assert labels[1] == "собака"
    assert labels[0] in ("犬", r"\u72ac")
    assert labels[4] == r"\U0010fffd"


def test_another_installed_font_serves_where_the_first_has_no_glyph(monkeypatch):
    glyphs = fonts._glyphs
    first = []

    def lacks_latin(path):
        first.append(path)
        return glyphs(path) - set(map(ord, "ab")) if path == first[0] else glyphs(path)

    monkeypatch.setattr(fonts, "_glyphs", lacks_latin)
    labels, families = fonts.drawable(["ab c"])
    assert labels == ["ab c"]
    assert len(families) == 2


# In a browser.


def test_a_reader_explores_it_with_pointer_and_keys(rng, browser, tmp_path):
    from selenium.webdriver import ActionChains, Keys

    weights = softmax(rng, 2, 3, len(TARGET), len(SOURCE))
    path = tmp_path / "attention.html"
    path.write_text(plotting.attention_html(weights, SOURCE, TARGET, "A <title>"))
    browser.get(path.as_uri())

    def find(selector):
        return browser.find_elements("css selector", selector)

    def numbers(side):
        return [chip.text for chip in find(f"#{side} .token small")]

    def written(values):
        rounded = np.rint(np.asarray(values) * 255) / 255
        return [f"{value:.2f}" for value in rounded]

    assert browser.title == "A <title>"
    assert [chip.text for chip in find("#source .token span")] == readable(SOURCE)
    mean = np.rint(weights * 255).mean(axis=(0, 1)) / 255
    shown = np.array(numbers("source"), float)
    np.testing.assert_allclose(shown, mean[0], atol=0.0051)

    find(".map")[4].click()  # Layer 2, head 2.
    chips = {side: find(f"#{side} .token") for side in ("source", "target")}
    ActionChains(browser).move_to_element(chips["target"][1]).perform()
    assert numbers("source") == written(weights[1, 1, 1])
    assert numbers("target") == [""] * len(TARGET)
    best = SOURCE[weights[1, 1, 1].argmax()]
    said = find("#said")[0].text
    assert said.startswith(f"“␣Hund” (target 2) attends to “{readable([best])[0]}” ")
    ActionChains(browser).move_to_element(chips["source"][2]).perform()
    assert numbers("target") == written(weights[1, 1, :, 2])

    browser.execute_script("document.getElementById('head').focus()")
    keys = (Keys.TAB, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    ways = (("source", 0), ("source", 1), ("target", 1))
    for key, (side, index) in zip(keys, ways, strict=True):
        browser.switch_to.active_element.send_keys(key)
        assert browser.switch_to.active_element == chips[side][index]
    assert numbers("source") == written(weights[1, 1, 1])

    assert browser.execute_script("return window.attacked") is None
    assert browser.get_log("browser") == []
