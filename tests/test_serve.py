"""The page translates, says what is wrong and shows the attention, in a browser too."""

import contextlib
import json
import sys
import threading

import keras
import numpy as np
import pytest

import keras_seqattn as ks
from keras_seqattn.translator import AttentionWeights

pytestmark = pytest.mark.backends("torch")

pytest.importorskip("flask")
HOSTILE = "<img src=x onerror='window.attacked = 1'>"


class Words:
    """A tokenizer with a token for each word."""

    def tokenize(self, lines):
        return [[3] * len(line.split()) for line in lines]


class Stub:
    """Answers at once: each hypothesis is numbered, and attends to the first words."""

    class model:
        max_length = 8

    source_tokenizer = target_tokenizer = Words()

    def translate(self, lines, search=None):
        self.search = search
        count = getattr(search, "num_hypotheses", 1)
        return [[(f"{line} {n}", -0.5 - n) for n in range(count)] for line in lines]

    def attention(self, source, target=None):
        sides = [[*side.split(), "</s>"] for side in (source, target)]
        weights = np.full((2, 2, len(sides[1]), len(sides[0])), 0.1, "float32")
        weights[..., 0] = 0.6
        return AttentionWeights(*sides, weights)


@pytest.fixture(scope="module")
def example(load_example):
    """The script as a module."""
    return load_example("serve")


@pytest.fixture
def stub():
    return Stub()


@pytest.fixture
def client(example, stub):
    return example.make_app(stub).test_client()


def test_translations_come_best_first_with_their_scores(client, stub):
    answer = client.post("/translate", json={"text": "a dog", "beam": 3})
    assert answer.status_code == 200
    assert answer.json == {
        "translations": [
            {"text": f"a dog {n}", "score": score}
            for n, score in enumerate((-0.5, -1.5, -2.5))
        ]
    }
    assert stub.search == ks.decoding.BeamSearch(width=3, num_hypotheses=3)


def test_one_beam_is_greedy_and_four_are_the_default(client, stub):
    assert len(client.post("/translate", json={"text": "a"}).json["translations"]) == 4
    answer = client.post("/translate", json={"text": "a", "beam": 1}).json
    assert len(answer["translations"]) == 1
    assert stub.search == ks.decoding.Greedy()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"text": ""}', "`text` must be one line that is not empty. Received: ''."),
        ('{"text": " "}', "must be one line that is not empty. Received: ' '."),
        ('{"text": "a\\nb"}', r"must be one line that is not empty. Received: 'a\nb'."),
        ('{"text": 3}', "must be one line that is not empty. Received: 3."),
        ("{}", "`text` must be one line that is not empty. Received: None."),
        (
            json.dumps({"text": "a " * 8}),
            "`text` must have at most 8 tokens, its end included. Received: 9 tokens.",
        ),
        ('{"text": "a", "beam": 0}', "`beam` must be an integer from 1 to 8. Rec"),
        ('{"text": "a", "beam": 9}', "from 1 to 8. Received: 9."),
        ('{"text": "a", "beam": true}', "from 1 to 8. Received: True."),
        ('{"text": "a", "beam": "4"}', "from 1 to 8. Received: '4'."),
        ('["a"]', "`request` must be a JSON object. Received: ['a']."),
        ("text=a", "could not understand"),
        ("", "could not understand"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(client, body, message):
    answer = client.post("/translate", data=body, content_type="application/json")
    assert answer.status_code == 400
    assert message in answer.json["error"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({}, "`text` must be one line that is not empty. Received: None."),
        ({"text": "a", "translation": "b " * 8}, "`translation` must have at most 8"),
    ],
)
def test_attention_of_a_wrong_line_is_an_error(client, query, message):
    answer = client.get("/attention", query_string=query)
    assert answer.status_code == 400
    assert message in answer.json["error"]


def test_other_errors_are_json_too(client):
    long = client.post("/translate", json={"text": "a" * 2**16})
    assert (long.status_code, list(long.json)) == (413, ["error"])
    missing = client.get("/missing")
    assert (missing.status_code, list(missing.json)) == (404, ["error"])
    assert client.get("/translate").status_code == 405


def test_attention_is_the_page_of_plotting(client, stub):
    query = {"text": HOSTILE, "translation": "ein Hund"}
    answer = client.get("/attention", query_string=query)
    assert answer.mimetype == "text/html"
    assert answer.text == ks.plotting.attention_html(
        stub.attention(HOSTILE, "ein Hund"), title="What attends to what"
    )
    empty = client.get("/attention", query_string={"text": "a", "translation": ""})
    assert empty.status_code == 200


def test_the_page_loads_nothing_from_elsewhere(client):
    answer = client.get("/")
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    assert "http" not in answer.text


def test_a_translator_is_served(example):
    keras.utils.set_random_seed(0)
    tokenizer = ks.text.ByteTokenizer()
    model = ks.models.TranslationTransformer(
        tokenizer.vocabulary_size,
        model_dim=8,
        num_heads=2,
        encoder_layers=1,
        decoder_layers=1,
        intermediate_dim=8,
        max_length=16,
    )
    translator = ks.Translator(model, tokenizer)
    client = example.make_app(translator).test_client()
    given = {"text": "dog", "beam": 2}
    answer = client.post("/translate", json=given).json["translations"]
    search = ks.decoding.BeamSearch(width=2, num_hypotheses=2)
    (expected,) = translator.translate(["dog"], search=search)
    assert [(one["text"], one["score"]) for one in answer] == expected
    query = {"text": "dog", "translation": "Hund"}
    assert client.get("/attention", query_string=query).status_code == 200
    long = client.post("/translate", json={"text": "x" * 16})
    assert "at most 16 tokens, its end included. Received: 17" in long.json["error"]


def test_it_listens_on_this_machine_alone(example, stub, monkeypatch, capsys):
    class Server:
        port = 4321

        def serve_forever(self):
            print("serving")

    def make_server(host, port, app, threaded):
        assert (host, port, app.name) == ("127.0.0.1", 8000, "serve")
        return Server()

    monkeypatch.setattr(example, "make_server", make_server)
    monkeypatch.setattr(ks.Translator, "load", {"a.keras": stub}.__getitem__)
    monkeypatch.setattr(sys, "argv", ["serve.py", "--translator", "a.keras"])
    example.main()
    printed = capsys.readouterr().out
    assert printed == "Open http://127.0.0.1:4321 (Ctrl-C ends it)\nserving\n"


@contextlib.contextmanager
def served(example, translator):
    """Serves on a free port of this machine; gives the address."""
    app = example.make_app(translator)
    server = example.make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_reader_translates_and_explores(example, stub, browser):
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.support.select import Select
    from selenium.webdriver.support.wait import WebDriverWait

    def find(selector):
        return browser.find_elements("css selector", selector)

    def wait(condition):
        return WebDriverWait(browser, 20).until(lambda _: condition())

    def attention():
        """Goes into the frame, when it has come; gives the chips of both sides."""
        browser.switch_to.default_content()
        browser.switch_to.frame(find("#attention")[0])
        return [find(f"#{side} .token") for side in ("source", "target")]

    with served(example, stub) as address:
        browser.get(address)
        text = find("#text")[0]
        text.send_keys(Keys.ENTER)
        wait(lambda: "must be one line that is not empty" in find("#said")[0].text)

        Select(find("#beam")[0]).select_by_visible_text("2")
        text.send_keys(HOSTILE, Keys.ENTER)
        wait(lambda: len(find(".found")) == 2)
        shown = [button.text.split("\n") for button in find(".found")]
        assert shown == [[f"{HOSTILE} 0", "-0.500"], [f"{HOSTILE} 1", "-1.500"]]

        wait(lambda: all(attention()))
        source, target = attention()
        words = [*HOSTILE.split(), "1", "</s>"]
        assert [chip.text.split("\n")[0] for chip in target][-2:] == ["0", "</s>"]
        ActionChains(browser).move_to_element(target[0]).perform()
        numbers = [chip.text.split("\n")[1] for chip in source]
        assert numbers == ["0.60"] + ["0.10"] * (len(words) - 2)

        browser.switch_to.default_content()
        find(".found")[1].click()
        wait(lambda: [chip.text.split("\n")[0] for chip in attention()[1]] == words)
        browser.switch_to.default_content()
        assert [b.get_attribute("aria-pressed") for b in find(".found")] == [
            "false",
            "true",
        ]
        assert find("#attention")[0].size["height"] > 300
        assert browser.execute_script("return window.attacked") is None
        # The empty line's answer is all that the browser complains about.
        logged = browser.get_log("browser")
        assert all("400 (BAD REQUEST)" in entry["message"] for entry in logged), logged
        browser.get("about:blank")
