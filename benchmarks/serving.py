"""How does `examples/serve.py` behave under load, with clients of all kinds?

    python -m benchmarks.serving --translator FILE.keras
    python -m benchmarks.serving --clients 50 --seconds 120   # random weights

First one client, then many, ask one line after another. Then many clients hang up, send
half of a request, or come all at once. The server and its clients share the machine's
cores. Random weights never end a line, so every translation has the greatest length.
"""

import concurrent.futures
import contextlib
import http.client
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from benchmarks import rounds

SCRIPT = rounds.ROOT / "examples" / "serve.py"
JSON = {"Content-Type": "application/json"}
WORDS = (
    "a two man woman dog child red blue small runs sits plays in on near park".split()
)


def main():
    args = parse()
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(saved(args.translator))
        begun = time.monotonic()
        _, port = stack.enter_context(served(path))
        rows = [("start, programs compiled", f"{time.monotonic() - begun:.0f} s")]
        alone = load(port, 1, min(20, args.seconds), args.beam)
        many = load(port, args.clients, args.seconds, args.beam)
        rows += [
            ("1 client", described(alone)),
            (f"{args.clients} clients, {args.seconds} s", described(many)),
            ("rate of many over one", f"{many['rate'] / alone['rate']:.1f}"),
            ("200 clients hang up; the next waits", hang_up(port, 200, args.beam)),
            ("300 half-sent requests", send_half(port, 300, args.beam)),
            ("200 at once", come_at_once(port, 200, args.beam)),
        ]
    print("| what | result |\n|---|---|")
    for row in rows:
        print("| {} | {} |".format(*row))


def parse():
    parser = rounds.make_parser("benchmarks.serving", __doc__)
    add = parser.add_argument
    file = "file that Translator.save wrote; default: random weights"
    add("--translator", help=file)
    add("--clients", type=rounds.count, default=50, help="at once; default: 50")
    seconds = "with many clients; default: 120"
    add("--seconds", type=rounds.count, default=120, help=seconds)
    beams = range(1, 9)  # as `examples/serve.py` takes them
    add("--beam", type=int, choices=beams, default=4, help="beams; default: 4")
    return parser.parse_args()


def make_translator(**options):
    """Makes a translator with random weights, by default of the main recipe's size."""
    import keras

    import keras_seqattn as ks

    keras.utils.set_random_seed(0)
    tokenizer = ks.text.ByteTokenizer()
    model = ks.models.TranslationTransformer(tokenizer.vocabulary_size, **options)
    return ks.Translator(model, tokenizer)


@contextlib.contextmanager
def saved(path, **options):
    """Yields the path of a translator, of one with random weights if it is None."""
    with tempfile.TemporaryDirectory() as folder:
        if path is None:
            path = f"{folder}/random.keras"
            make_translator(**options).save(path)
        yield path


@contextlib.contextmanager
def served(translator):
    """Starts the server in its own process; yields the process and its port."""
    command = [sys.executable, SCRIPT, "--translator", translator, "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(rounds.ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            for line in process.stdout:
                print(line, end="", file=sys.stderr, flush=True)
                if line.startswith("Open"):
                    break
            else:
                raise RuntimeError(f"{SCRIPT.name} ended with {process.wait()}.")
            yield process, int(line.split()[1].rpartition(":")[2])
        finally:
            process.terminate()


def line_of(rng):
    return " ".join(rng.choices(WORDS, k=rng.randint(3, 12)))[:60]


def body_of(text, beam):
    return json.dumps({"text": text, "beam": beam}).encode()


def ask(connection, text, beam):
    """Returns the status of one request, and the seconds until its answer."""
    begun = time.monotonic()
    connection.request("POST", "/translate", body_of(text, beam), JSON)
    answer = connection.getresponse()
    answer.read()
    return answer.status, time.monotonic() - begun


def once(port, text, beam):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    with contextlib.closing(connection):
        return ask(connection, text, beam)


def load(port, clients, seconds, beam):
    """Lets clients ask one line after another; returns how they were answered."""
    until = time.monotonic() + seconds
    answers, errors = [], []

    def run(number):
        rng = random.Random(number)
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            with contextlib.closing(connection):
                while time.monotonic() < until:
                    answers.append(ask(connection, line_of(rng), beam))
        except Exception as error:
            errors.append(repr(error))

    begun = time.monotonic()
    threads = [threading.Thread(target=run, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    good = [taken for status, taken in answers if status == 200]
    refused = sum(status == 503 for status, _ in answers)
    taken = good or [math.nan]
    return {
        "rate": len(good) / (time.monotonic() - begun),
        "median": statistics.median(taken),
        "worst": max(taken),
        "refused": refused,
        "errors": len(errors) + len(answers) - len(good) - refused,
    }


def described(answers):
    return (
        f"{answers['rate']:.1f} lines/s, median {answers['median']:.2f} s, worst "
        f"{answers['worst']:.2f} s, {answers['refused']} refused, "
        f"{answers['errors']} errors"
    )


def hang_up(port, count, beam):
    """Returns how long a client waits after `count` others have hung up."""
    body = body_of(line_of(random.Random(0)), beam)
    headers = f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
    head = f"POST /translate HTTP/1.1\r\n{headers}\r\n".encode()
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(head + body)
    status, seconds = once(port, "a dog runs", beam)
    return f"{seconds:.2f} s, status {status}"


def send_half(port, count, beam):
    """Returns how long another client waits, and until the half ones are all closed."""
    begun = time.monotonic()
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for client in clients:
        client.sendall(b"POST /translate HTTP/1.1\r\nX-Half: ")
    status, seconds = once(port, "a dog runs", beam)
    for client in clients:
        client.settimeout(60)
        with client, contextlib.suppress(ConnectionResetError):
            client.recv(1)
    closed = time.monotonic() - begun
    return (
        f"another waits {seconds:.2f} s, status {status}; all closed in {closed:.1f} s"
    )


def come_at_once(port, count, beam):
    """Returns how many were answered and how many refused, and their times."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        found = list(pool.map(lambda _: once(port, "a dog runs", beam), range(count)))
    parts = []
    for wanted, what in ((200, "translated"), (503, "refused")):
        seconds = [taken for status, taken in found if status == wanted] or [0.0]
        number = sum(status == wanted for status, _ in found)
        worst, middle = max(seconds), statistics.median(seconds)
        parts.append(f"{number} {what} (median {middle:.2f} s, worst {worst:.2f} s)")
    return ", ".join(parts)


if __name__ == "__main__":
    main()
