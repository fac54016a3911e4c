r"""Serves a page to translate and to look at the attention, on this machine alone.

    python examples/serve.py --translator FILE.keras   # open http://127.0.0.1:8000

The page shows the best translations with their scores, and for the one chosen what each
token attends to, in every layer and head. Programs use the same address:

    curl -H "Content-Type: application/json" http://127.0.0.1:8000/translate \
         -d '{"text": "A dog runs.", "beam": 4}'

gives {"translations": [{"text": ..., "score": ...}, ...]}, best first, and for a wrong
request {"error": ...} with the status 400. The first line of each beam width waits for
its program to be compiled. It needs `pip install ".[serve]"`.
"""

import argparse
import base64
import hashlib
import string
import threading

import flask
from werkzeug.exceptions import BadRequest, HTTPException
from werkzeug.serving import make_server

import keras_seqattn as ks

MAX_BEAM = 8
MAX_TOKENS = 256


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--translator", required=True, help="a file that Translator.save wrote")
    add("--host", default="127.0.0.1", help="address to listen on; this machine's own")
    add("--port", type=int, default=8000, help="default: 8000; 0 takes a free one")
    args = parser.parse_args()
    app = make_app(ks.Translator.load(args.translator))
    server = make_server(args.host, args.port, app, threaded=True)
    print(f"Open http://{args.host}:{server.port} (Ctrl-C ends it)", flush=True)
    server.serve_forever()


def make_app(translator):
    """Makes the application: the page, `/translate` for JSON, `/attention` to look at.

    Example:
        app = make_app(keras_seqattn.Translator.load("translator.keras"))
    """
    app = flask.Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = 2**16
    limit = min(translator.model.max_length or MAX_TOKENS, MAX_TOKENS)
    one_at_a_time = threading.Lock()

    @app.get("/")
    def page():
        return PAGE, {"Content-Security-Policy": POLICY}

    @app.post("/translate")
    def translate():
        given = flask.request.get_json(force=True)
        if not isinstance(given, dict):
            raise BadRequest(f"`request` must be a JSON object. Received: {given!r}.")
        text = checked("text", given.get("text"), translator.source_tokenizer)
        search = search_of(given.get("beam", 4))
        with one_at_a_time:
            (found,) = translator.translate([text], search=search)
        found = [{"text": text, "score": score} for text, score in found]
        return {"translations": found}

    @app.get("/attention")
    def attention():
        given, target = flask.request.args, translator.target_tokenizer
        text = checked("text", given.get("text"), translator.source_tokenizer)
        translation = given.get("translation", "")
        if translation:
            checked("translation", translation, target)
        with one_at_a_time:
            weights = translator.attention(text, translation)
        return ks.plotting.attention_html(weights, title="What attends to what")

    @app.errorhandler(HTTPException)
    def say(error):
        return {"error": error.description}, error.code

    def checked(name, text, tokenizer):
        """Gives a line of text, or answers that it is none."""
        if not isinstance(text, str) or not text.strip() or len(text.splitlines()) > 1:
            raise BadRequest(
                f"`{name}` must be one line that is not empty. Received: {text!r}."
            )
        count = len(tokenizer.tokenize([text])[0]) + 1
        if count > limit:
            raise BadRequest(
                f"`{name}` must have at most {limit} tokens, its end included. "
                f"Received: {count} tokens."
            )
        return text

    return app


def search_of(beam):
    if type(beam) is not int or not 1 <= beam <= MAX_BEAM:
        raise BadRequest(
            f"`beam` must be an integer from 1 to {MAX_BEAM}. Received: {beam!r}."
        )
    if beam == 1:
        return ks.decoding.Greedy()
    return ks.decoding.BeamSearch(width=beam, num_hypotheses=beam)


STYLE = """
:root { --ink: #1e293b; --faint: #64748b; --line: #e2e8f0; --mark: #c2410c; }
body { margin: 0; background: #f8fafc; color: var(--ink);
  font: 16px/1.5 system-ui, "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.3rem; font-weight: 600; margin: 0 0 1rem; }
form { display: flex; flex-wrap: wrap; gap: 0.6rem; align-items: center; }
input, select, button { font: inherit; color: inherit; background: #fff;
  border: 1px solid #cbd5e1; border-radius: 8px; padding: 0.4rem 0.7rem; }
#text { flex: 1 1 20rem; }
form button { background: #1d4ed8; border-color: #1d4ed8; color: #fff; }
label { color: var(--faint); font-size: 0.9rem; }
#said { min-height: 1.5em; margin: 0.6rem 0.2rem; color: var(--faint); }
#said.wrong { color: var(--mark); }
ol { list-style: none; margin: 0; padding: 0; }
.found { display: flex; gap: 1rem; width: 100%; margin-bottom: 0.3rem; cursor: pointer;
  text-align: start; }
.found span { flex: 1; white-space: pre-wrap; overflow-wrap: anywhere; }
.found small { color: var(--faint); font-variant-numeric: tabular-nums; }
.found[aria-pressed=true] { border-color: var(--mark); background: #ffedd5; }
iframe { display: block; width: 100%; border: 0; margin-top: 0.5rem; }
:focus-visible { outline: 3px solid var(--mark); outline-offset: 1px; }
"""

SCRIPT = """
"use strict";
const byId = (id) => document.getElementById(id);
const frame = byId("attention");
let asked = 0;

function say(message, wrong = false) {
  byId("said").textContent = message;
  byId("said").classList.toggle("wrong", wrong);
}

async function translate(text, beam) {
  const response = await fetch("translate", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ text, beam }),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer.translations;
}

function show(text, translations) {
  const buttons = translations.map(({ text: translation, score }) => {
    const button = document.createElement("button");
    const words = document.createElement("span");
    const number = document.createElement("small");
    button.className = "found";
    words.dir = "auto";
    words.textContent = translation;
    number.textContent = score.toFixed(3);
    button.append(words, number);
    button.addEventListener("click", () => {
      buttons.forEach((one) => one.setAttribute("aria-pressed", one === button));
      frame.src = "attention?" + new URLSearchParams({ text, translation });
      frame.hidden = false;
    });
    return button;
  });
  byId("translations").replaceChildren(...buttons.map((button) => {
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
  buttons[0].click();
}

byId("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const mine = ++asked;
  const text = byId("text").value;
  byId("translations").replaceChildren();
  frame.hidden = true;
  say("Translating …");
  try {
    const translations = await translate(text, Number(byId("beam").value));
    if (mine !== asked) return;
    say("Best first. Choose one to see what it attends to.");
    show(text, translations);
  } catch (error) {
    if (mine === asked) say(error.message, true);
  }
});

frame.addEventListener("load", () => {
  frame.style.height = `${frame.contentDocument.documentElement.scrollHeight}px`;
});
"""

PAGE = string.Template(
    """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Translator</title>
<link rel="icon" href="data:,">
<style>$style</style>
</head>
<body>
<main>
<h1>Translator</h1>
<form id="form">
<input id="text" aria-label="Text" placeholder="A line to translate" dir="auto"
autocomplete="off" autofocus>
<label>Beams <select id="beam">
<option>1<option>2<option selected>4<option>8
</select></label>
<button>Translate</button>
</form>
<p id="said" role="status"></p>
<ol id="translations"></ol>
<iframe id="attention" title="Attention" hidden></iframe>
</main>
<script>$script</script>
</body>
</html>
"""
).substitute(style=STYLE, script=SCRIPT)


def hashed(text):
    """Gives the name by which a content security policy allows an inline element."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


POLICY = (
    f"default-src 'none'; style-src {hashed(STYLE)}; script-src {hashed(SCRIPT)}; "
    "img-src data:; connect-src 'self'; frame-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


if __name__ == "__main__":
    main()
