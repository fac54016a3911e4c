"""Writes the API reference, `docs/api/*.md`, from the docstrings of the public names.

`python -m docs.generate` writes the pages; a test asserts that they are up to date.
"""

import importlib
import inspect
import pathlib
import re
import textwrap

API = pathlib.Path(__file__).parent / "api"
PACKAGE = "keras_seqattn"
ROOMS = (
    "layers",
    "models",
    "decoding",
    "training",
    "text",
    "translator",
    "text_generator",
    "tuning",
    "export",
    "plotting",
    "recipes",
    "audit",
)
LISTS = ("Attributes", "Args", "Call arguments", "Raises")
SECTIONS = (*LISTS, "Returns", "Yields", "Example", "Reference")
WIDTH = 88


def pages():
    """Maps the name of each page to its text."""
    modules = [importlib.import_module(f"{PACKAGE}.{room}") for room in ROOMS]
    texts = {
        f"{room}.md": page(module) for room, module in zip(ROOMS, modules, strict=True)
    }
    return texts | {"README.md": index(modules)}


def index(modules):
    """Writes the page that lists the others."""
    rows = [
        f"| [`{module.__name__}`]({module.__name__.rpartition('.')[2]}.md) "
        f"| {inspect.getdoc(module).partition(chr(10))[0]} |"
        for module in modules
    ]
    return _joined(
        "# API reference",
        "Written by `python -m docs.generate` from the docstrings.",
        "\n".join(["| room | what it holds |", "|---|---|", *rows]),
    )


def page(module):
    """Writes the page of one room."""
    names = public_names(module)
    links = [f"[`{name}`](#{name.lower()})" for name in names]
    entries = [entry(name, getattr(module, name)) for name in names]
    return _joined(
        f"# {module.__name__}",
        prose(inspect.getdoc(module)),
        " · ".join(links),
        *entries,
    )


def public_names(module):
    """Returns the names in `__all__`, or those that the room itself defines."""
    return getattr(module, "__all__", None) or [
        name
        for name, thing in vars(module).items()
        if getattr(thing, "__module__", "").startswith(module.__name__)
        and not name.startswith("_")
    ]


def entry(name, thing):
    """Writes a function, or a class and the methods it adds to Keras's."""
    parts = [f"## {name}", signature(name, thing), docstring(thing)]
    if inspect.isclass(thing):
        for method, function in methods(thing):
            parts += [
                f"### {name}.{method}",
                signature(f"{name}.{method}", function),
                docstring(function),
            ]
    return "\n\n".join(parts)


def methods(cls):
    """Yields the public methods of a class that none of its foreign bases has."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith(PACKAGE)]
    foreign = [base for base in cls.__mro__ if base not in ours]
    known = {pair for base in foreign for pair in _kinds(base)}
    own = dict(pair for base in reversed(ours) for pair in _kinds(base))
    for name, kind in own.items():
        thing = getattr(cls, name)
        is_public = name == "__call__" or not name.startswith("_")
        if is_public and (name, kind) not in known and inspect.isroutine(thing):
            yield name, thing


def _kinds(cls):
    """Gives names with their kinds: torch's modules have a `train`, no class method."""
    return [(name, type(value)) for name, value in vars(cls).items()]


def signature(name, thing):
    """Writes how a function or constructor is called, on one line if that fits."""
    if inspect.isclass(thing) and inspect.isfunction(thing.__init__):
        # Keras's `__new__` would hide the arguments of the constructor.
        thing = thing.__init__
    parameters = [
        str(parameter).replace("'", '"')
        for parameter in _with_marks(inspect.signature(thing).parameters.values())
        if str(parameter) != "self"
    ]
    line = f"{name}({', '.join(parameters)})"
    if len(line) > WIDTH:
        lines = textwrap.indent(",\n".join(parameters), "    ")
        line = f"{name}(\n{lines},\n)"
    return f"```python\n{line}\n```"


def _with_marks(parameters):
    """Yields the parameters, with the star before the first keyword-only one."""
    starred = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            yield "*"
        starred |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        yield parameter


def docstring(thing):
    """Writes a docstring: lists for arguments, a code block for the example."""
    header = "|".join(SECTIONS)
    pieces = re.split(rf"^({header}):$", inspect.getdoc(thing), flags=re.MULTILINE)
    parts = [prose(pieces[0])]
    for section, text in zip(pieces[1::2], pieces[2::2], strict=True):
        text = textwrap.dedent(text).strip()
        if section == "Example":
            body = f"```pycon\n{text}\n```"
        else:
            body = bullets(text) if section in LISTS else prose(text)
        parts.append(f"**{section}**\n\n{body}")
    return "\n\n".join(parts)


def bullets(text):
    """Writes the items `name: what it is` as a list."""
    items = (" ".join(item.split()) for item in re.split(r"\n(?=\S)", text))
    named = (item.split(": ", 1) for item in items)
    return "\n".join(f"- `{name}`: {prose(meaning)}" for name, meaning in named)


def prose(text):
    """Writes plain text as Markdown: the line of shapes stands alone, `x*y` is safe."""
    text = re.sub(r"\n+(?=Shapes: )", "\n\n", text.strip())
    pieces = re.split(r"(`[^`]+`)", text)
    unsafe = r"(\*(?! )|<(?=\w))"
    pieces[::2] = [re.sub(unsafe, r"\\\1", piece) for piece in pieces[::2]]
    return "".join(pieces)


def _joined(*blocks):
    return "\n\n".join(blocks) + "\n"


def main():
    """Writes every page."""
    API.mkdir(exist_ok=True)
    for name, text in pages().items():
        (API / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
