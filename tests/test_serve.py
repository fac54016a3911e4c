"""The page translates, says what is wrong and shows the attention, in a browser too."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import runpy
import socket
import sys
import threading
import time
import types

import keras
import numpy as np
import pytest

import keras_seqattn as ks
from keras_seqattn.sentence_attention import AttentionWeights
from tests.small import translation_model

pytestmark = pytest.mark.backends("torch")

pytest.importorskip("flask")
pytest.importorskip("waitress")
JSON = {"Content-Type": "application/json"}
HOSTILE = "<img src=x onerror='window.attacked = 1'>"


class Words:
    """A tokenizer with a token for each word."""

    def tokenize(self, lines):
        return [[3] * len(line.split()) for line in lines]


class Stub:
    """Answers at once: each hypothesis is numbered, and attends to the first words."""

    max_source_length = 8
    source_tokenizer = target_tokenizer = Words()

    def __init__(self):
        self.search, self.model = None, types.SimpleNamespace(attention_scores=None)
        self.batches, self.looked, self.free = [], [], threading.Event()
        self.free.set()

    def translate(self, lines, search=None):
        self.search = search
        self.batches.append(lines)
        assert self.free.wait(20)
        if lines == ["fail"]:
            raise RuntimeError("on purpose")
        count = getattr(search, "num_hypotheses", 1)
        return [[(f"{line} {n}", -0.5 - n) for n in range(count)] for line in lines]

    def attention(self, source, target=None):
        self.looked.append(source)
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
    # Widths are few, and never less than was asked for.
    assert stub.search == ks.decoding.BeamSearch(width=4, num_hypotheses=4)


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
        ('{"text": "a", "beams": 4}', "may hold `beam`. Received: beams."),
        ('["a"]', "`request` must be a JSON object. Received: ['a']."),
        ("text=a", "`request` must be JSON in UTF-8."),
        ("", "`request` must be JSON in UTF-8."),
        ('{"text": "\\ud800"}', r"surrogates. Received: '\ud800'."),
        (b"\xff", "`request` must be JSON in UTF-8."),
        ("[" * 60_000, "nested less deeply"),
        ('{"text": ' + "[" * 900 + "]" * 900 + "}", "`"),
        ("9" * 9_999, "`request` must be JSON in UTF-8."),
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
        ({"text": "a " * 8}, "`text` must have at most 8 tokens"),
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
    wrong = client.get("/translate")
    assert (wrong.status_code, list(wrong.json)) == (405, ["error"])
    assert set(wrong.allow) == {"POST", "OPTIONS"}


def test_attention_is_the_page_of_plotting(client, stub):
    query = {"text": HOSTILE, "translation": "ein Hund"}
    answer = client.get("/attention", query_string=query)
    assert answer.mimetype == "text/html"
    assert answer.text == ks.plotting.attention_html(
        stub.attention(HOSTILE, "ein Hund"), title="What attends to what"
    )
    # A translation may be empty, longer than a source may be, and have line breaks.
    for translation in ("", "b " * 20, "b\nc\n"):
        query = {"text": "a", "translation": translation}
        assert client.get("/attention", query_string=query).status_code == 200


def test_a_model_without_attention_says_so(example, stub, monkeypatch):
    def attention(*given):
        raise ValueError("`model` must be a single model. Received: an ensemble.")

    monkeypatch.setattr(stub, "attention", attention)
    answer = example.make_app(stub).test_client().get("/attention?text=a&translation=b")
    assert answer.status_code == 400
    assert "an ensemble" in answer.json["error"]


def test_a_look_is_no_longer_than_a_translation(example):
    """What a client makes up is cut at the most tokens of a served translation."""
    tokenizer = ks.text.ByteTokenizer()
    model = translation_model(tokenizer.vocabulary_size)
    assert model.max_length is None
    translator = ks.Translator(model, tokenizer)
    client = example.make_app(translator).test_client()
    most = 2 * example.MAX_TOKENS + 10
    looked = []
    attention = translator.attention
    translator.attention = lambda *lines: looked.append(attention(*lines)) or looked[-1]

    def look(translation):
        query = {"text": "a", "translation": translation}
        assert client.get("/attention", query_string=query).status_code == 200
        return looked[-1].weights.shape[-2]

    assert look("b" * (most - 1)) == most
    with pytest.warns(UserWarning, match=f"longer than the {most} tokens"):
        assert look("b" * 5000) == most


def test_the_page_loads_nothing_from_elsewhere(client):
    answer = client.get("/")
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    assert "http" not in answer.text


def test_a_translator_is_served(example):
    keras.utils.set_random_seed(0)
    tokenizer = ks.text.ByteTokenizer()
    model = translation_model(tokenizer.vocabulary_size, max_length=16)
    translator = ks.Translator(model, tokenizer)
    client = example.make_app(translator).test_client()
    given = {"text": "dog", "beam": 2}
    answer = client.post("/translate", json=given).json["translations"]
    search = ks.decoding.BeamSearch(width=4, num_hypotheses=4)
    (expected,) = translator.translate(["dog"], search=search)
    assert [(one["text"], one["score"]) for one in answer] == expected[:2]
    query = {"text": "dog", "translation": "Hund"}
    assert client.get("/attention", query_string=query).status_code == 200
    long = client.post("/translate", json={"text": "x" * 16})
    assert "at most 16 tokens, its end included. Received: 17" in long.json["error"]


@pytest.mark.parametrize(
    ("options", "host", "shown"),
    [((), "127.0.0.1", "127.0.0.1"), (("--host", "::1"), "::1", "[::1]")],
)
def test_it_listens_on_this_machine_alone(
    example, stub, monkeypatch, capsys, options, host, shown
):
    class Server:
        effective_port = 4321

        def run(self):
            print("serving")

    def make_server(app, given, port):
        assert (given, port, app.name) == (host, 8000, "serve")
        return Server()

    monkeypatch.setattr(example, "make_server", make_server)
    monkeypatch.setattr(ks.Translator, "load", {"a.keras": stub}.__getitem__)
    monkeypatch.setattr(sys, "argv", ["serve.py", "--translator", "a.keras", *options])
    example.main()
    printed = capsys.readouterr().out
    assert printed == f"Open http://{shown}:4321 (Ctrl-C ends it)\nserving\n"


def test_it_ends_at_once(example, stub, monkeypatch):
    """A thread of torch that still computed while Python ends would abort."""

    class Ended(Exception):
        pass

    def end(status):
        raise Ended(status)

    server = types.SimpleNamespace(effective_port=4321, run=lambda: None)
    monkeypatch.setattr(
        example.waitress.server, "create_server", lambda *_, **__: server
    )
    monkeypatch.setattr(socket, "create_server", lambda *_, **__: None)
    monkeypatch.setattr(ks.Translator, "load", {"a.keras": stub}.__getitem__)
    monkeypatch.setattr(sys, "argv", ["serve.py", "--translator", "a.keras"])
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.syspath_prepend(pathlib.Path(example.__file__).parent)
    with pytest.raises(Ended, match="0"):
        runpy.run_path(example.__file__, run_name="__main__")


@pytest.fixture
def main(example, stub, monkeypatch):
    """Runs the script with a stub for a translator; its errors end it."""

    def main(*options):
        monkeypatch.setattr(sys, "argv", ["serve.py", *map(str, options)])
        with pytest.raises(SystemExit):
            example.main()

    return main


def test_a_path_without_a_translator_is_an_error(main, tmp_path, capsys):
    main("--translator", tmp_path / "none.keras")
    message = capsys.readouterr().err
    assert "`--translator` must be a file of `Translator.save`. Received: --" in message
    assert "none.keras', which does not exist." in message


@pytest.mark.parametrize("port", [None, 99_999])
def test_a_port_that_is_not_free_is_an_error(main, stub, monkeypatch, capsys, port):
    monkeypatch.setattr(ks.Translator, "load", {"a.keras": stub}.__getitem__)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = port or taken.getsockname()[1]
        main("--translator", "a.keras", "--port", port)
    wanted = f"a free port. Received: --host=127.0.0.1, --port={port}: "
    assert wanted in capsys.readouterr().err


def test_ctrl_c_ends_it_without_a_traceback(example, stub, monkeypatch, capsys):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    ended = []
    server = types.SimpleNamespace(effective_port=4321, run=interrupted)
    monkeypatch.setattr(
        example.waitress.server, "create_server", lambda *_, **__: server
    )
    monkeypatch.setattr(socket, "create_server", lambda *_, **__: None)
    monkeypatch.setattr(ks.Translator, "load", {"a.keras": stub}.__getitem__)
    monkeypatch.setattr(sys, "argv", ["serve.py", "--translator", "a.keras"])
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.syspath_prepend(pathlib.Path(example.__file__).parent)
    runpy.run_path(example.__file__, run_name="__main__")
    assert ended == [0]
    assert capsys.readouterr().out.endswith("Stopped.\n")


def test_a_form_of_another_page_is_refused(client):
    """Without the content type a browser would ask the server first."""
    answer = client.post("/translate", data='{"text": "a"}', content_type="text/plain")
    assert answer.status_code == 400
    assert "content type application/json" in answer.json["error"]


def test_a_page_of_another_site_gets_no_answer(client):
    address = "/attention?text=a&translation=b"
    for site, status in (("cross-site", 400), ("same-origin", 200), (None, 200)):
        headers = {"Sec-Fetch-Site": site} if site else {}
        assert client.get(address, headers=headers).status_code == status


def test_programs_are_compiled_at_the_start(example, stub, monkeypatch, capsys):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    report = ks.decoding.CompileReport(7, 1.5)
    stub.compile_report, stub.max_source_length = lambda: report, 40
    example.compile_programs(stub)
    sizes = [len(lines) for lines in stub.batches]
    assert sizes == [*example.SIZES] * 3 * len(example.WIDTHS)
    lengths = {1 + len(lines[0].split()) for lines in stub.batches}
    assert lengths == {2, 17, 33}, "each is padded to another power of 2"
    assert [1 + len(line.split()) for line in stub.looked] == [2, 17, 33]
    printed = capsys.readouterr().out
    assert "18/18" in printed and "7 programs compiled in 0 s" in printed


@contextlib.contextmanager
def served(example, translator, **options):
    """Serves on a free port of this machine; gives the address."""
    app = example.make_app(translator, **options)
    server = example.make_server(app, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.effective_port}/"
    finally:
        # Its thread may close the trigger before what pulls it has written to it.
        with contextlib.suppress(OSError):
            server.trigger.pull_trigger(server.close)
        thread.join(2)  # or, while a browser keeps its connection, until that is idle


def ask(address, text="a dog", beam=1):
    """Asks the server for a translation; returns status, Retry-After and seconds."""
    begun = time.monotonic()
    connection = http.client.HTTPConnection(address.split("/")[2], timeout=20)
    with contextlib.closing(connection):
        body = json.dumps({"text": text, "beam": beam})
        connection.request("POST", "/translate", body, JSON)
        answer = connection.getresponse()
        answer.read()
    return answer.status, answer.getheader("Retry-After"), time.monotonic() - begun


def wait_for(condition):
    limit = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.fixture
def crowd():
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        yield pool


@pytest.fixture
def workers(example, monkeypatch):
    """A list, to which each worker that an application makes is added."""
    made = []

    class Known(example.Worker):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(example, "Worker", Known)
    return made


def test_requests_that_wait_are_one_batch(example, stub, crowd, workers):
    with served(example, stub) as address:
        stub.free.clear()
        first = crowd.submit(ask, address, "first")
        wait_for(lambda: stub.batches)
        others = [crowd.submit(ask, address, f"{n}") for n in range(18)]
        wait_for(lambda: len(workers[0]._waiting) == 18)
        stub.free.set()
        assert {one.result()[0] for one in [first, *others]} == {200}
    batches = [set(lines) for lines in stub.batches]
    assert [len(lines) for lines in stub.batches] == [1, 16, 16]
    assert set.union(*batches[1:]) == {f"{n}" for n in range(18)}


def test_more_than_the_queue_holds_are_refused_at_once(example, stub, crowd):
    with served(example, stub, most=3) as address:
        stub.free.clear()
        running = crowd.submit(ask, address)
        wait_for(lambda: stub.batches)
        held = [crowd.submit(ask, address) for _ in range(20)]
        wait_for(lambda: sum(one.done() for one in held) == 17)
        refused = [one.result() for one in held if one.done()]
        assert {one[:2] for one in refused} == {(503, "2")}
        assert max(seconds for _, _, seconds in refused) < 5
        stub.free.set()
        assert [running.result()[0]] + [one.result()[0] for one in held].count(200) * [
            200
        ] == [200] * 4


def test_nobody_waits_longer_than_the_limit(example, stub):
    with served(example, stub, seconds=0.3) as address:
        stub.free.clear()
        status, retry_after, seconds = ask(address)
        assert (status, retry_after) == (503, "2") and seconds < 5
        stub.free.set()
        wait_for(lambda: ask(address)[0] == 200)


def test_the_work_of_clients_that_are_gone_is_dropped(example, stub, crowd, workers):
    body = json.dumps({"text": "gone", "beam": 1})
    headers = f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
    request = f"POST /translate HTTP/1.1\r\n{headers}\r\n{body}"
    with served(example, stub) as address:
        host, port = address.split("/")[2].split(":")
        stub.free.clear()
        running = crowd.submit(ask, address, "first")
        wait_for(lambda: stub.batches)
        for _ in range(60):
            with socket.create_connection((host, int(port))) as client:
                client.sendall(request.encode())
        last = crowd.submit(ask, address, "next")
        (worker,) = workers
        there = [("next",)]
        wait_for(lambda: [j.given for j in worker._waiting if not j.gone()] == there)
        stub.free.set()
        assert running.result()[0] == last.result()[0] == 200
    assert stub.batches == [["first"], ["next"]]


def test_what_is_half_sent_is_not_held_for_ever(example, stub, monkeypatch):
    """Nor if it comes byte by byte."""
    monkeypatch.setattr(example, "ARRIVE", 1)
    with served(example, stub) as address:
        host, port = address.split("/")[2].split(":")
        clients = [socket.create_connection((host, int(port))) for _ in range(30)]
        begun = time.monotonic()
        for client in clients:
            client.sendall(b"POST /translate HTTP/1.1\r\nX: ")
        assert ask(address)[0] == 200
        closed = threading.Event()

        def drip():
            with contextlib.suppress(OSError):
                while not closed.wait(0.1):
                    clients[0].sendall(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        for client in reversed(clients):
            client.settimeout(10)
            with client, contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
        closed.set()
        dripping.join()
        assert time.monotonic() - begun < 6


def test_a_failure_is_one_batch_s_alone(example, stub):
    with served(example, stub) as address:
        assert ask(address, "fail")[0] == 500
        assert ask(address)[0] == 200


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
