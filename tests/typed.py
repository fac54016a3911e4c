"""Prints each function of the package whose types pyright does not know.

A class derived from one of Keras's is never known as a whole, since Keras has no types
of its own. Hence this reads pyright's report, and not its exit status.
"""

import json
import subprocess
import sys

KNOWN = "keras_seqattn.translator.Translator.translate"


def report():
    """Returns what pyright found of every symbol that a user can import."""
    command = "pyright --verifytypes keras_seqattn --ignoreexternal --outputjson"
    done = subprocess.run(
        [sys.executable, "-m", *command.split()], capture_output=True, text=True
    )
    return json.loads(done.stdout)["typeCompleteness"]["symbols"]


def unknown(symbols):
    """Yields a line for each function or method whose signature is not known."""
    for symbol in symbols:
        is_function = symbol["category"] in ("function", "method")
        if symbol["isExported"] and is_function and not symbol["isTypeKnown"]:
            reasons = [found["message"] for found in symbol["diagnostics"]]
            yield f"{symbol['name']}: {'; '.join(reasons)}"


if __name__ == "__main__":
    found = report()
    if not any(symbol["name"] == KNOWN for symbol in found):
        sys.exit(f"pyright has found no {KNOWN}: is the package installed?")
    lines = list(unknown(found))
    print(*lines, f"{len(lines)} functions have types that are not known.", sep="\n")
    sys.exit(bool(lines))
