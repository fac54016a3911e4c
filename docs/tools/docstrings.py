"""Teaches mkdocstrings how this library writes docstrings and exports names."""

import re

import griffe

# Its names for our sections, with the title that is shown.
_SECTIONS = {
    "Call arguments": "Other Parameters: Call arguments",
    "Example": "Examples",
}
_HEADER = re.compile(rf"^({'|'.join(_SECTIONS)}):$", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Renames sections, and finds functions named as the module that defines them."""

    def on_instance(self, *, obj, **kwargs):
        """Renames the sections of one docstring, which griffe has just read."""
        if not obj.is_alias and obj.docstring:
            obj.docstring.value = sections(obj.docstring.value)

    def on_package(self, *, pkg, **kwargs):
        """Makes `decoding.search` the function, as it is when Python imports it."""
        for module in _modules(pkg):
            for name in map(str, module.exports or ()):
                submodule = module.members.get(name)
                if submodule and submodule.is_module and name in submodule.members:
                    module.members[name] = submodule.members[name]
                    module.members[name].parent = module


def sections(text):
    """Returns a docstring with the names of sections that mkdocstrings reads."""
    text = re.sub(r"\n+(?=Shapes: )", "\n\n", text)
    return _HEADER.sub(lambda match: f"{_SECTIONS[match[1]]}:", text)


def _modules(module):
    yield module
    for member in list(module.members.values()):
        if not member.is_alias and member.is_module:
            yield from _modules(member)
