"""Filter of Doxygen for pages: prints a Markdown file whose headings have identifiers, and whose links lead to pages, files
and pictures of the reference.

usage: page.py FILE, in the root of the repository
"""

import pathlib
import re
import sys

FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
HEADING = re.compile(r"^(#+) (.*)$", re.M)
BOLD_LINK = re.compile(r"\*\*\[([^]]*)\]\(([^)\s]+)\)\*\*")
LINK_OR_CODE = re.compile(r"(?P<code>`[^`]*`)|(?P<picture>!?)\[(?P<text>[^]]*)\]\((?P<target>[^)\s]+)\)")
GUIDE = pathlib.Path("examples/guide/README.md")
SOURCES = {".h", ".hpp", ".cpp"}
root = pathlib.Path.cwd()


def page_of(path):
    """Identifier of a page, from which Doxygen makes the name of its file."""
    return "index" if path == pathlib.Path("README.md") else str(path.with_suffix("")).replace("/", "_")


def section_of(path, anchor):
    """Identifier of a section; anchor: what a link to it has after the #."""
    return page_of(path) + "_" + anchor.replace("-", "_")


def anchor_of(heading):
    """The anchor that hosting sites give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def linked(path, match):
    if match["code"] or re.match(r"\w+:", match["target"]):
        return match[0]
    target, _, anchor = match["target"].partition("#")
    found = (root / path.parent / target).resolve().relative_to(root) if target else path
    if match["picture"]:
        return f"![{match['text']}]({found.name})"
    words = re.sub(r"[*`]", "", match["text"])  # @ref takes plain text
    if path == GUIDE and found.parent == GUIDE.parent and not anchor and (root / found).exists():
        return f'@subpage {page_of(found)} "{words}"'
    if found.suffix == ".md" and (root / found).exists():
        return f"[{words}](@ref {section_of(found, anchor) if anchor else page_of(found)})"
    if found.suffix in SOURCES and found.parts[0] == "include":
        return f"[{words}](@ref {found.relative_to('include')})"
    if found.suffix in SOURCES and found.parts[:-1] == ("examples",):
        return f"[{match['text']}]({found.name.replace('_', '__').replace('.', '_8')}_source.html)"
    return match["text"]  # the reference does not have it


def with_identifier(path, match):
    level, title = match.groups()
    identifier = page_of(path) if level == "#" else section_of(path, anchor_of(title))
    return match[0] if identifier == "index" else f"{match[0]} {{#{identifier}}}"


def prose(path, text):
    text = BOLD_LINK.sub(r"[\1](\2)", text)  # Doxygen has no links in bold text
    text = LINK_OR_CODE.sub(lambda match: linked(path, match), text)
    return HEADING.sub(lambda match: with_identifier(path, match), text)


def main():
    path = pathlib.Path(sys.argv[1]).resolve().relative_to(root)
    text = path.read_text(encoding="utf-8")
    begin = 0
    for fence in FENCE.finditer(text):
        print(prose(path, text[begin : fence.start()]) + fence[0], end="")
        begin = fence.end()
    print(prose(path, text[begin:]), end="")


main()
