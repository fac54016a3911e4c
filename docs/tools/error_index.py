"""Collects the messages of errors and warnings from the source, for the site.

Nothing is imported: what an argument must be is read from the call that checks it.
"""

import ast
import builtins
import functools
import pathlib
from typing import NamedTuple

PACKAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "keras_seqattn"
UNKNOWN = "…"
_INFINITY = float("inf")


class Requirement(NamedTuple):
    """What an argument must be, and which function or class says so."""

    argument: str
    wanted: str
    owner: str


class Message(NamedTuple):
    """The text of an error or a warning, its class, and who raises it."""

    kind: str
    text: str
    owner: str


def on_page_markdown(markdown, page, config, files):
    """Puts the index where a page has the comment `error index`."""
    return markdown.replace("<!-- error index -->", index())


def index():
    """Writes a section for each part of the package, as Markdown."""
    sections = []
    for part, modules in parts().items():
        found = [Reader(path) for path in modules]
        requirements = sorted({one for reader in found for one in reader.requirements})
        messages = sorted({one for reader in found for one in reader.messages})
        if requirements or messages:
            blocks = [f"## {part}", _table(requirements), _list(messages)]
            sections.append("\n\n".join(filter(None, blocks)))
    return "\n\n".join(sections)


def parts():
    """Maps each part of the package to the paths of its modules."""
    found = {}
    for path in sorted(PACKAGE.glob("**/*.py")):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part != "arguments":  # The checks themselves, which know no argument.
            found.setdefault("keras_seqattn" if part[0] == "_" else part, []).append(
                path
            )
    return found


def _table(requirements):
    """Writes a row for each argument and what it must be, with all who say so."""
    owners = {}
    for argument, wanted, owner in requirements:
        owners.setdefault((argument, wanted), []).append(owner)
    if not owners:
        return ""
    rows = [
        f"| {code(argument)} | {escaped(wanted)} | {', '.join(map(code, names))} |"
        for (argument, wanted), names in owners.items()
    ]
    return "\n".join(["| argument | must be | of |", "|---|---|---|", *rows])


def _list(messages):
    """Writes a line for each message."""
    return "\n".join(
        f"- {code(owner)}, {kind}: {code(text)}" for kind, text, owner in messages
    )


def code(text):
    """Writes text as a span of code, whatever backticks it holds."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def escaped(text):
    """Writes text for a cell of a table."""
    return text.replace("|", r"\|").replace("*", r"\*")


class Reader(ast.NodeVisitor):
    """Reads the requirements and the messages of one module.

    Attributes:
        requirements: List of `Requirement`.
        messages: List of `Message`.
        unread: Lines of errors whose text is not written where they are raised.
    """

    def __init__(self, path):
        self.requirements, self.messages, self.unread = [], [], []
        self._part = f"keras_seqattn.{path.relative_to(PACKAGE).parts[0]}"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self._scopes, self._locals = [], [_constants() | _assigned(tree.body)]
        self.visit(tree)

    def visit_ClassDef(self, node):
        """Enters a class."""
        self._enter(node)

    def visit_FunctionDef(self, node):
        """Enters a function, and notes what its names are assigned."""
        self._enter(node)

    def visit_For(self, node):
        """Enters a loop, whose name may run over written values."""
        self._locals.append(_looped(node))
        self.generic_visit(node)
        self._locals.pop()

    def _enter(self, node):
        self._scopes.append(node.name)
        self._locals.append(_assigned(ast.walk(node)))
        self.generic_visit(node)
        self._scopes.pop()
        self._locals.pop()

    def visit_Raise(self, node):
        """Reads the message of an error."""
        error = node.exc
        if isinstance(error, ast.Call) and isinstance(error.func, ast.Name):
            self._read(error.func.id, error, node.lineno)
        self.generic_visit(node)

    def _read(self, kind, call, line):
        known = issubclass(getattr(builtins, kind, object), Exception)
        internal = kind in ("NotImplementedError", "AttributeError")
        if internal or not known or not call.args:
            return
        text = self._text(call.args[0])
        if text.strip(f"{UNKNOWN}. "):
            self.messages.append(Message(kind, text, self._owner()))
        else:
            self.unread.append(line)

    def visit_Call(self, node):
        """Reads a check of an argument, or a warning."""
        function = node.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            if function.value.id == "arguments":
                self._check(function.attr, node)
            elif (function.value.id, function.attr) == ("warnings", "warn"):
                self._read("UserWarning", node, node.lineno)
        self.generic_visit(node)

    def _check(self, check, node):
        wanted = _WANTED.get(check)
        if wanted is None or not node.args:
            return
        given = dict(zip(_SIGNATURES[check], node.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in node.keywords}
        for name in self._values(node.args[0]):
            words = wanted(**{key: self._one(value) for key, value in given.items()})
            if name != UNKNOWN and words[0] not in UNKNOWN + " ":
                self.requirements.append(Requirement(name, words, self._owner()))

    def _owner(self):
        """Returns the name of the class or function that a reader knows."""
        public = []
        for scope in self._scopes:
            if scope.startswith("_"):
                break
            public.append(scope)
        return ".".join(public) or self._part.removesuffix(".py")

    def _one(self, node):
        values = self._values(node)
        return values[0] if len(values) == 1 else UNKNOWN

    def _values(self, node):
        """Returns all values that an expression may have, as far as it is written."""
        try:
            return [ast.literal_eval(node)]
        except (ValueError, TypeError):
            pass
        if isinstance(node, ast.JoinedStr):
            return [self._text(node)]
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tuple":
            node = node.args[0]
        if isinstance(node, ast.Dict):
            return [tuple(self._one(key) for key in node.keys)]
        name = getattr(node, "id", getattr(node, "attr", None))
        if isinstance(node, ast.Name) or (name and name.isupper()):
            found = next((s[name] for s in self._locals[::-1] if name in s), None)
            if found and not any(one is node for one in found):
                return [value for one in found for value in self._values(one)]
        return [UNKNOWN]

    def _text(self, node):
        """Returns a string with its gaps named in braces."""
        if isinstance(node, ast.JoinedStr):
            return "".join(map(self._text, node.values))
        if isinstance(node, ast.FormattedValue):
            value = node.value
            simple = isinstance(value, ast.Name | ast.Attribute)
            return f"{{{ast.unparse(value)}}}" if simple else UNKNOWN
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._text(node.left) + self._text(node.right)
        value = self._one(node)
        return value if isinstance(value, str) else UNKNOWN


def _assigned(nodes):
    """Maps names to the expressions that they are assigned."""
    found = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    return found


@functools.cache
def _constants():
    """Maps the constants of all modules, in capitals, to their values."""
    found = {}
    for path in PACKAGE.glob("**/*.py"):
        for name, values in _assigned(ast.parse(path.read_text("utf-8")).body).items():
            if name.isupper():
                found.setdefault(name, []).extend(values)
    return found


def _looped(loop):
    """Maps the name that a loop runs over written strings to these."""
    target, over = loop.target, loop.iter
    if isinstance(over, ast.Call) and ast.unparse(over.func).endswith(".items"):
        over = over.func.value
    items = getattr(over, "keys", None) or getattr(over, "elts", [])
    if isinstance(target, ast.Tuple):
        target = target.elts[0]
        items = [one.elts[0] if isinstance(one, ast.Tuple) else one for one in items]
    named = isinstance(target, ast.Name) and items
    return {target.id: items} if named else {}


def _integer(least=None, most=None, optional=False, **_):
    if (least, most) == (1, None):
        return _optional("a positive integer", optional)
    if most is not None:
        low = -_INFINITY if least is None else least
        return _optional(f"an integer in [{low}, {most}]", optional)
    wanted = "an integer" + ("" if least is None else f" of at least {least}")
    return _optional(wanted, optional)


def _number(least=None, above=None, most=None, below=None, optional=False, **_):
    if (least, above, most, below) == (None,) * 4:
        return _optional("a finite number", optional)
    bounds = [UNKNOWN if b == UNKNOWN else f"{b:g}" for b in _bounds(**locals())]
    opening, closing = "(" if least is None else "[", ")" if most is None else "]"
    return _optional(
        f"a number in {opening}{bounds[0]}, {bounds[1]}{closing}", optional
    )


def _bounds(least, above, most, below, **_):
    low = (-_INFINITY if least is None else least) if above is None else above
    high = (_INFINITY if most is None else most) if below is None else below
    return low, high


def _keras_object(name, **_):
    kind = str(name).rpartition("_")[2]
    article = "an" if kind[0] in "ai" else "a"
    return _optional(f"{article} {kind}", kind != "activation")


def _optional(wanted, optional=False):
    return wanted + (" or None" if optional is True else "")


def _fixed(words):
    return lambda optional=False, **_: _optional(words, optional)


def _given(wanted=UNKNOWN, optional=False, **_):
    return _optional(wanted, optional)


# What each check of `keras_seqattn.arguments` says; a test compares the words with its.
_WANTED = {
    "boolean": _fixed("True or False"),
    "choice": lambda choices, optional=False, **_: _optional(
        f"one of {choices}", optional
    ),
    "fraction": _fixed("in [0, 1)"),
    "function": _fixed("a function"),
    "index": _integer,
    "instance": _given,
    "integer": _integer,
    "interpreted": _given,
    "keras_object": _keras_object,
    "number": _number,
    "offers": _given,
    "ordered": _given,
    "path": _fixed("a path"),
    "positive_integer": lambda optional=False, **_: _integer(1, None, optional),
    "refuse": _given,
    "scalar": _fixed("a finite number"),
    "seed": lambda **_: _optional("an integer", True),
    "sequence": _given,
    "strings": _fixed("strings only"),
    "tensor": _fixed("an array or a tensor of numbers"),
    "text": _fixed("a string"),
}
_SIGNATURES = {
    "boolean": ("name", "value", "optional"),
    "choice": ("name", "value", "choices", "optional"),
    "fraction": ("name", "value", "optional"),
    "function": ("name", "value", "optional"),
    "index": ("name", "value", "least"),
    "instance": ("name", "value", "types", "wanted", "optional"),
    "integer": ("name", "value", "least", "most", "optional"),
    "interpreted": ("name", "value", "interpret", "wanted", "optional"),
    "keras_object": ("name", "value"),
    "number": ("name", "value", "least", "above", "most", "below", "optional"),
    "offers": ("name", "value", "attributes", "wanted", "optional"),
    "ordered": ("name", "value", "wanted", "table"),
    "path": ("name", "value", "optional"),
    "positive_integer": ("name", "value", "optional"),
    "refuse": ("name", "value", "wanted", "optional"),
    "scalar": ("name", "value", "optional"),
    "seed": ("name", "value"),
    "sequence": ("name", "value", "wanted", "check", "optional"),
    "strings": ("name", "lines", "first"),
    "tensor": ("name", "value", "optional"),
    "text": ("name", "value", "optional"),
}
