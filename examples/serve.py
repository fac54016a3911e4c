r"""Serves a web page that translates and shows the attention, on this machine only.

    python examples/serve.py --translator FILE.keras   # open http://127.0.0.1:8000

The page shows the best translations with their scores and, for the one you choose, what
each token attends to in every layer and head. Programs use the same address:

    curl -H "Content-Type: application/json" http://127.0.0.1:8000/translate \
         -d '{"text": "A dog runs.", "beam": 4}'

returns {"translations": [{"text": ..., "score": ...}, ...]}, best first, as many as
`beam`, from 1 to 8, by default 4. A text has at most 128 tokens, its end included. A
wrong request gets {"error": ...} with the status 400. Waiting requests are translated
together. When the queue is full, further requests are refused with the status 503 and
the seconds after which to try again. All programs are compiled at the start, which can
take minutes. It needs `pip install ".[serve]"`.
"""

import argparse
import base64
import collections
import concurrent.futures
import hashlib
import itertools
import logging
import os
import socket
import string
import threading
import time
from typing import NamedTuple

from options import installed

with installed(__doc__):
    import flask
    import keras
    import waitress.channel
    import waitress.server
    from beams import with_beams
    from werkzeug.exceptions import BadRequest, HTTPException, ServiceUnavailable

    import keras_seqattn as ks

MAX_TOKENS = 128
# A search uses the smallest of these beam widths that a request fits, and a batch is
# filled up to one of these sizes. So there are few programs, all compiled at the start.
WIDTHS = (1, 4, 8)
SIZES = (1, 16)
MAX_BEAM = WIDTHS[-1]
# At most QUEUE requests wait, each in a thread, beside those of the batch that is being
# translated. SPARE further threads answer all other requests. A refused client is told
# to retry after RETRY_AFTER seconds.
QUEUE = 64
SPARE = 8
RETRY_AFTER = 2
# Seconds that a request may wait for its turn, and that it may take to arrive. Idle
# connections are closed after ARRIVE seconds, too.
WAIT = 30
ARRIVE = 10


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--translator", required=True, help="a file that Translator.save wrote")
    host = "address to listen on; default: 127.0.0.1, for this machine alone"
    add("--host", default="127.0.0.1", help=host)
    add("--port", type=int, default=8000, help="default: 8000; 0 takes a free one")
    args = parser.parse_args()
    try:
        translator = ks.Translator.load(args.translator)
    except ValueError as error:
        parser.error(
            "`--translator` must be a file of `Translator.save`. Received: "
            f"--translator={args.translator}. {error}"
        )
    try:  # Before the programs are compiled, so that a port in use is told at once.
        server = make_server(make_app(translator), args.host, args.port)
    except (OSError, OverflowError) as error:
        parser.error(
            "`--host` and `--port` must be an address of this machine and a free "
            f"port. Received: --host={args.host}, --port={args.port}: {error}. "
            "Choose another --port."
        )
    compile_programs(translator)
    host = f"[{args.host}]" if ":" in args.host else args.host
    address = f"http://{host}:{server.effective_port}"
    print(f"Open {address} (Ctrl-C ends it)", flush=True)
    server.run()


def make_server(app, host, port):
    """Makes the server of an application, which limits requests' number, size, time."""
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # Waiting is normal.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = waitress.server.create_server(
        app,
        sockets=[socket.create_server((host, port), family=family)],
        threads=QUEUE + SIZES[-1] + SPARE,  # those of a batch wait, too
        backlog=1024,
        connection_limit=1000,
        channel_timeout=ARRIVE,
        cleanup_interval=1,
        channel_request_lookahead=1,  # to see when a client is gone
        max_request_header_size=2**14,
        max_request_body_size=2**17,
        asyncore_use_poll=True,  # `select` fails beyond 1,024 descriptors.
        ident=None,  # no header `Server`
    )
    server.channel_class = Channel
    return server


class Channel(waitress.channel.HTTPChannel):
    """A connection whose requests must arrive whole in time, not byte by byte."""

    def handle_read(self):
        """Reads; data in the middle of a request does not restart the clock."""
        begun, since = self.request, self.last_activity
        super().handle_read()
        if begun is not None and self.request is begun:
            self.last_activity = since


class Job(NamedTuple):
    """What a request waits for: translations or, if `width` is None, attention weights.

    Attributes:
        given: The arguments, strings.
        width: Number of beams, or None.
        gone: Function that returns whether the client has hung up.
        answer: A future of the result.
    """

    given: tuple[str, ...]
    width: int | None
    gone: collections.abc.Callable[[], bool]
    answer: concurrent.futures.Future


class Worker:
    """Does the jobs of all requests in one thread; jobs of equal width form batches.

    Args:
        translator: The `Translator`.
        most: Number of jobs that may wait.
        seconds: How long each may wait.
    """

    def __init__(self, translator, most=QUEUE, seconds=WAIT):
        self._translator, self._most, self._seconds = translator, most, seconds
        self._waiting, self._changed = collections.deque(), threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def do(self, given, width=None, gone=lambda: False):
        """Returns the result of a job, or answers that the server is busy."""
        job = Job(given, width, gone, concurrent.futures.Future())
        with self._changed:
            if len(self._waiting) >= self._most:
                self._drop_gone()
            if len(self._waiting) >= self._most:
                busy(f"{self._most} requests are waiting")
            self._waiting.append(job)
            self._changed.notify()
        try:
            return job.answer.result(self._seconds)
        except concurrent.futures.TimeoutError:
            job.answer.cancel()
            busy(f"no answer came in {self._seconds} seconds")
        except concurrent.futures.CancelledError:
            busy("the client is gone")

    def _drop_gone(self):
        """Drops jobs that nobody waits for any more."""
        for job in self._waiting:
            if job.gone():
                job.answer.cancel()
        left = [job for job in self._waiting if not job.answer.cancelled()]
        self._waiting = collections.deque(left)

    def _run(self):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                self._drop_gone()
                batch = self._next()
            try:
                self._answer(
                    [j for j in batch if j.answer.set_running_or_notify_cancel()]
                )
            except Exception as error:
                for job in batch:
                    if not job.answer.done():
                        job.answer.set_exception(error)

    def _next(self):
        """Takes the job that has waited longest, and those that can be done with it."""
        if not self._waiting:
            return []
        first = self._waiting[0]
        if first.width is None:
            return [self._waiting.popleft()]
        like = [job for job in self._waiting if job.width == first.width]
        batch = like[: SIZES[-1]]
        for job in batch:
            self._waiting.remove(job)
        return batch

    def _answer(self, batch):
        if not batch:
            return
        if batch[0].width is None:
            batch[0].answer.set_result(self._translator.attention(*batch[0].given))
            return
        lines = [job.given[0] for job in batch]
        found = translate(self._translator, lines, batch[0].width)
        for job, translations in zip(batch, found, strict=True):
            job.answer.set_result(translations)


def busy(reason):
    raise ServiceUnavailable(
        f"Try again in {RETRY_AFTER} seconds: {reason}.", retry_after=RETRY_AFTER
    )


def translate(translator, lines, width):
    """Translates lines, no more than the largest of `SIZES`."""
    search = with_beams(translator.search, width, num_hypotheses=width)
    size = next(size for size in SIZES if size >= len(lines))
    filled = lines + lines[-1:] * (size - len(lines))
    return translator.translate(filled, search=search)[: len(lines)]


def compile_programs(translator):
    """Compiles a program for each width, size and length, as the page's requests do."""
    if keras.backend.backend() == "torch":
        return  # It computes without compiling.
    begun, limit = time.monotonic(), most_tokens(translator)
    line, tokens = "", 0
    # Sources are padded to 16, 32, 64, ... tokens: a line just above each shorter one.
    lengths = (0, *(2**k for k in range(4, (limit - 1).bit_length())))
    print("Compiling the searches of all lengths:", flush=True)
    progress = keras.utils.Progbar(
        len(lengths) * len(WIDTHS) * len(SIZES), unit_name="search"
    )
    for shorter in lengths:
        while tokens <= shorter:
            line += " a"
            tokens = 1 + len(translator.source_tokenizer.tokenize([line])[0])
        for width, size in itertools.product(WIDTHS, SIZES):
            translate(translator, [line] * size, width)
            progress.add(1)
        if hasattr(translator.model, "attention_scores"):
            translator.attention(line, line)
    count = translator.compile_report().num_programs
    print(f"{count} programs compiled in {time.monotonic() - begun:.0f} s", flush=True)


def most_tokens(translator):
    return min(translator.max_source_length, MAX_TOKENS)


def make_app(translator, **options):
    """Makes the application: the page, `/translate` for JSON, `/attention` for HTML.

    Lowers the `max_source_length` of the translator to `MAX_TOKENS`.

    Example:
        app = make_app(keras_seqattn.Translator.load("translator.keras"))
    """
    app = flask.Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = 2**16
    worker = Worker(translator, **options)
    # Requests for attention are also cut to this length.
    translator.max_source_length = most_tokens(translator)

    def done(given, width=None):
        # Browsers say which page has sent a request.
        if flask.request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
            raise BadRequest("`request` must not come from a page of a different site.")
        gone = flask.request.environ.get("waitress.client_disconnected")
        return worker.do(given, width, gone or (lambda: False))

    @app.get("/")
    def page():
        return PAGE, {"Content-Security-Policy": POLICY}

    @app.post("/translate")
    def answer():
        given = read_request()
        text = checked_text(translator, given.get("text"))
        beam = checked_beam(given.get("beam", 4))
        width = next(width for width in WIDTHS if width >= beam)
        found = done((text,), width)[:beam]
        return {"translations": [{"text": t, "score": score} for t, score in found]}

    @app.get("/attention")
    def attention():
        given = flask.request.args
        text = checked_text(translator, given.get("text"))
        # Any output of a model is allowed here: it may be longer than a source, and
        # have line breaks.
        try:
            weights = done((text, given.get("translation", "")))
        except ValueError as error:  # An ensemble has none.
            raise BadRequest(str(error)) from None
        return ks.plotting.attention_html(weights, title="What attends to what")

    @app.errorhandler(HTTPException)
    def say(error):
        answer = error.get_response()  # with its headers, such as Retry-After
        answer.data = flask.json.dumps({"error": error.description})
        answer.content_type = "application/json"
        return answer

    @app.errorhandler(RecursionError)
    def nested(error):
        return {"error": "`request` must be JSON that is nested less deeply."}, 400

    return app


def read_request():
    """Returns the dict that a request for translations holds, or answers what is wrong.

    What its values must be is not checked here.
    """
    # Without it, a browser would send the request of any page without asking.
    if not flask.request.is_json:
        raise BadRequest("`request` must have the content type application/json.")
    try:
        given = flask.request.get_json()
    except BadRequest:
        raise BadRequest("`request` must be JSON in UTF-8.") from None
    if not isinstance(given, dict):
        raise BadRequest(f"`request` must be a JSON object. Received: {given!r}.")
    if unknown := given.keys() - {"text", "beam"}:
        raise BadRequest(
            "`request` must hold `text`, and may hold `beam`. "
            f"Received: {', '.join(sorted(unknown))}."
        )
    return given


def checked_text(translator, text):
    """Returns a line of text, or answers why it is not valid."""
    if not isinstance(text, str) or not text.strip() or len(text.splitlines()) > 1:
        raise BadRequest(
            f"`text` must be one line that is not empty. Received: {text!r}."
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRequest(
            "`text` must be valid Unicode, without lone surrogates. "
            f"Received: {text!r}."
        ) from None
    limit = translator.max_source_length
    (tokens,) = translator.source_tokenizer.tokenize([text])
    if len(tokens) >= limit:
        raise BadRequest(
            f"`text` must have at most {limit} tokens, its end included. "
            f"Received: {len(tokens) + 1} tokens."
        )
    return text


def checked_beam(beam):
    if type(beam) is not int or not 1 <= beam <= MAX_BEAM:
        raise BadRequest(
            f"`beam` must be an integer from 1 to {MAX_BEAM}. Received: {beam!r}."
        )
    return beam


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
    """Returns the hash by which a content security policy allows an inline element."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


POLICY = (
    f"default-src 'none'; style-src {hashed(STYLE)}; script-src {hashed(SCRIPT)}; "
    "img-src data:; connect-src 'self'; frame-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nStopped.")
    # At once: torch would abort if a translation still ran while Python ends.
    print(end="", flush=True)
    os._exit(0)
