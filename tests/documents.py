"""What the documents show a reader: their code blocks and their commands."""

import itertools
import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).parent.parent
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md")
    for path in ROOT.glob(pattern)
)
_COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:python|pip|pytest|bash) \S")
# A row of a table that begins with a date records a command that was run that day.
_RECORD = re.compile(r"^\| \d{4}-\d\d-\d\d \|.*$", re.M)


def blocks(document, language, section=""):
    """Yields the fenced blocks of a language, each with the line it begins on."""
    text = (ROOT / document).read_text()
    if section:
        begin = text.index(f"## {section}\n")
        end = text.find("\n## ", begin) % len(text)
        text = "\n" * text.count("\n", 0, begin) + text[begin:end]
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.M | re.S):
        yield text[: match.start(1)].count("\n"), match[1]


def outputs(document):
    """Maps the lines that Python blocks begin on to what the page says they print.

    A block is followed by its output where the next fenced block is of text.
    """
    text = (ROOT / document).read_text()
    fenced = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
    found, line = {}, None
    for match in fenced.finditer(text):
        if match[1] == "text" and line is not None:
            found[line] = match[2]
        is_python = match[1] == "python"
        line = text[: match.start(2)].count("\n") if is_python else None
    return found


def commands(document):
    """Returns the commands that a document shows, in its order, each once.

    A command is a line of a fenced block of no other language than bash, also within a
    list, or a span of code; those joined by `&&` are several. Dated records are left
    out.
    """
    text = _RECORD.sub("", (ROOT / document).read_text())
    fenced = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.M | re.S)
    lines = [
        line.strip()
        for language, block in fenced.findall(text)
        if language in ("", "bash")
        for line in block.splitlines()
    ]
    lines += re.findall(r"`([^`\n]+)`", fenced.sub("", text))
    found = [part for line in lines for part in line.split(" && ")]
    return list(dict.fromkeys(filter(_COMMAND.match, found)))


def words(command):
    """Splits a command as a shell does, without the variables set before it."""
    parts = shlex.split(command, comments=True)
    return parts[len(variables(command)) :]


def variables(command):
    """Returns the variables of the environment that are set before a command."""
    parts = shlex.split(command, comments=True)
    before = itertools.takewhile(lambda part: "=" in part, parts)
    return dict(part.split("=", 1) for part in before)


def docstring_commands(source):
    """Returns the commands of a script that its docstring shows, indented."""
    found = re.findall(r"^ {4}((?:[A-Z_]+=\S+ )*python .*)$", source, re.M)
    return [command.split("#")[0].strip() for command in found]
