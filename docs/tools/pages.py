"""Makes the pages of the site that lie outside `docs/`, for mkdocs.

README, changelog and benchmarks stand where readers of the repository look for them.
Here they become pages of the site, and the links between them and `docs/` lead to where
each page is there.
"""

import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Where each file of the repository stands in the site.
OUTSIDE = {"README.md": "index.md"} | {
    str(path.relative_to(ROOT)): str(path.relative_to(ROOT))
    for path in (
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "LICENSE",
        *(ROOT / "benchmarks").glob("**/*.md"),
    )
    if path.exists()
}
_LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)")


def on_files(files, config):
    """Adds the files outside `docs/` to those of the site."""
    for path, uri in OUTSIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turns links between files of the repository into links between pages."""
    return linked(markdown, page.file.src_uri)


def linked(markdown, uri):
    """Returns the text of a page whose links lead from its place in the site."""
    places = {place: path for path, place in OUTSIDE.items()}
    folder = posixpath.dirname(places.get(uri, f"docs/{uri}"))

    def link(match):
        path = posixpath.normpath(posixpath.join(folder, match[2]))
        place = OUTSIDE.get(path, path.removeprefix("docs/"))
        return match[1] + posixpath.relpath(place, posixpath.dirname(uri) or ".")

    return _LINK.sub(link, markdown)
