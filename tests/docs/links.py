"""Relative links, pictures and anchors of the Markdown pages lead somewhere, and the examples, which the pages tell to
copy, use public names alone.

usage: links.py ROOT
"""

import pathlib
import re
import sys
import tempfile
import unittest

FENCE = re.compile(r"^(```+).*?^\1$", re.M | re.S)
CODE = re.compile(r"`[^`]*`")
HEADING = re.compile(r"^#+ +(.*?) *$", re.M)
LINK = re.compile(r"\]\(\s*([^)\s]+)[^)]*\)|^\[[^]]+\]: *(\S+)|(?:href|src)=\"([^\"]+)\"", re.M)


def pages(root):
    found = (path for path in root.rglob("*.md") if path.relative_to(root).parts[0] != "build")
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(root).parts))


def blank(match):
    """Spaces in place of the text, so that positions and lines stay."""
    return re.sub(r"[^\n]", " ", match[0])


def anchors(text):
    """Anchors that hosting sites give the headings of a page: repeated ones are numbered."""
    found = {}
    names = set()
    for heading in HEADING.findall(FENCE.sub(blank, text)):
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = found[name] = found.get(name, -1) + 1
        names.add(f"{name}-{count}" if count else name)
    return names


def fault(root, page, target):
    """What is wrong with a link of a page; empty if it leads somewhere."""
    if re.match(r"[a-z]+:", target):
        return ""
    place, _, anchor = target.partition("#")
    path = (page.parent / place).resolve() if place else page
    if place.startswith("/") or not path.is_relative_to(root):
        return "leads out of the repository; links are relative to the page"
    if not path.exists():
        return f"there is no {path.relative_to(root)}"
    if anchor and path.suffix != ".md":
        return "only headings of Markdown pages have anchors"
    if anchor and anchor not in anchors(path.read_text(encoding="utf-8")):
        return f"{path.relative_to(root)} has no heading #{anchor}"
    return ""


def faults(root):
    for page in pages(root):
        text = CODE.sub(blank, FENCE.sub(blank, page.read_text(encoding="utf-8")))
        for link in LINK.finditer(text):
            target = next(filter(None, link.groups()))
            if reason := fault(root, page, target):
                yield f"{page.relative_to(root)}:{text.count(chr(10), 0, link.start()) + 1}: {target}: {reason}"


class Links(unittest.TestCase):
    def test_pages_of_the_repository(self):
        self.assertGreater(len(pages(ROOT)), 20)
        found = list(faults(ROOT))
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_planted_faults_are_reported(self):
        good = "# A page\n## Same name\n## Same `name`\n[x](sub/b.md#what-it-s) ![p](p.svg) [y](#same-name-1) `[c](no.md)`\n"
        bad = ["no.md", "sub/b.md#no", "#no", "p.svg#x", "/p.svg", "../outside.md", "no.svg"]
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder).resolve()
            (root / "sub").mkdir()
            (root / "p.svg").touch()
            (root / "sub" / "b.md").write_text("# What it s\n```sh\n# no\n[x](no.md)\n```\n", encoding="utf-8")
            (root / "a.md").write_text(good, encoding="utf-8")
            self.assertEqual(list(faults(root)), [])
            links = "".join(f"[x]({target})\n" for target in bad) + '[x]: no.md\n<img src="no.svg">\n'
            (root / "a.md").write_text(good + links, encoding="utf-8")
            found = list(faults(root))
            self.assertEqual(len(found), len(bad) + 2, found)
            self.assertEqual(found[0], "a.md:5: no.md: there is no no.md")


class Examples(unittest.TestCase):
    def test_public_names(self):
        examples = [path for path in sorted((ROOT / "examples").iterdir()) if path.suffix in (".cpp", ".hpp")]
        self.assertIn("socket_ring.hpp", [path.name for path in examples])
        private = [path.name for path in examples if re.search(r"detail\b", path.read_text(encoding="utf-8"))]
        self.assertEqual(private, [], "they name what may change: namespaces detail or ..._detail")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    ROOT = pathlib.Path(sys.argv.pop()).resolve()
    unittest.main()
