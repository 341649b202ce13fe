"""The reference: its links lead somewhere, it describes every enumerator, and the guide lists its headers.

usage: reference.py ROOT REFERENCE, the folder that Doxygen wrote
"""

import html
import pathlib
import re
import sys
import unittest
import urllib.parse
import xml.etree.ElementTree

LINK = re.compile(r"<[^>]*?\s(?:href|src|data)=\"([^\"]+)\"")
ANCHOR = re.compile(r"\s(?:id|name)=\"([^\"]+)\"")
SCRIPTS = re.compile(r"<script.*?</script>", re.S)
TABLE_ROW = re.compile(r"^\| \[([^]]+)\]\(\.\./\.\./include/annulus/([^)]+)\)", re.M)


def compounds():
    """Classes, concepts, namespaces and files."""
    files = [path for path in (REFERENCE / "xml").glob("*.xml") if path.name != "index.xml"]
    for file in files:
        yield from xml.etree.ElementTree.parse(file).iter("compounddef")


def header_of(element):
    return element.find("location").get("file").removeprefix("annulus/")


class Reference(unittest.TestCase):
    def test_links(self):
        pages = {path.name: path.read_text(encoding="utf-8") for path in (REFERENCE / "html").glob("*.html")}
        anchors = {name: set(ANCHOR.findall(text)) for name, text in pages.items()}
        dead = set()
        for name, text in pages.items():
            for link in map(html.unescape, LINK.findall(SCRIPTS.sub("", text))):
                place, _, anchor = link.partition("#")
                place = urllib.parse.unquote(place) or name
                if re.match(r"[a-z]+:", link) or anchor == "nested-classes":  # Doxygen links private classes so
                    continue
                if not (REFERENCE / "html" / place).exists() or anchor and anchor not in anchors[place]:
                    dead.add(f"{name}: {link}")
        self.assertIn("examples_guide_api.html", pages)
        self.assertEqual(dead, set())

    def test_every_enumerator_is_described(self):
        values = [
            (value.findtext("name"), "".join(value.find("briefdescription").itertext()).strip())
            for compound in compounds()
            for enumeration in compound.iter("memberdef")
            if enumeration.get("kind") == "enum"
            for value in enumeration.iter("enumvalue")
        ]
        self.assertGreater(len(values), 100)
        self.assertEqual([name for name, description in values if not description], [])

    def test_the_guide_lists_the_headers_that_have_names(self):
        headers = {"annulus.hpp"}  # includes others
        for compound in compounds():
            if compound.get("kind") in ("class", "struct", "concept"):
                headers.add(header_of(compound))
            elif compound.get("kind") == "namespace":
                headers |= {header_of(member) for member in compound.iter("memberdef")}
            elif compound.get("kind") == "file" and next(compound.iter("memberdef"), None) is not None:
                headers.add(header_of(compound))
        rows = TABLE_ROW.findall((ROOT / "examples/guide/api.md").read_text(encoding="utf-8"))
        self.assertEqual([text for text, target in rows if text != target], [])
        listed = {text for text, _ in rows}
        self.assertEqual(headers - listed, set(), "have names, and are not in the table")
        self.assertEqual(listed - headers, set(), "are in the table, and have no names")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    REFERENCE = pathlib.Path(sys.argv.pop())
    ROOT = pathlib.Path(sys.argv.pop())
    unittest.main()
