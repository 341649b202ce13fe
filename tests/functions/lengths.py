#!/usr/bin/env python3
"""Lengths of functions: none above 60 lines, no lambda above 20, and no lambda in another lambda.

lengths.py INCLUDE_FOLDER FOLDER...          checks include/annulus/FOLDER/**/*.hpp, and *.hpp of the top level for "."
lengths.py --self-test PLANTED_FILE          each line of the file that ends in "// found: ..." must be reported, no other

A function counts from the first line of its declaration, without comments above it, to its closing brace; a lambda from
its capture list to its closing brace. Comments, strings and preprocessor lines do not matter, except that they count as
lines. This is no parser of C++: it matches brackets, and knows a body by what stands before its brace.
"""

import bisect
import pathlib
import re
import sys

MOST_LINES_OF_FUNCTION = 60
MOST_LINES_OF_LAMBDA = 20

TOKEN = re.compile(r"[A-Za-z_]\w*|\.?\d(?:[\w.]|'\w|[eEpP][+-])*|::|->|[^\w\s]")
INVISIBLE = re.compile(
    r'(?P<raw>R"(?P<fence>[^(\s]*)\(.*?\)(?P=fence)")|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    r"|(?<![\w])'(?:\\.|[^'\\\n])+'|^[ \t]*\#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE)
OPENING, CLOSING = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
CLASS_KEYS = {"class", "struct", "union", "enum"}
# Their parentheses are not those of parameters.
NOT_DECLARATORS = {"noexcept", "requires", "decltype", "alignas", "__attribute__", "explicit", "if", "sizeof"}


def blank(match):
    """The text as blanks; a string stays a token, as what is subscripted or called may be one."""
    lines = "".join("\n" if c == "\n" else " " for c in match[0])
    return '0' + lines[1:] if match[0][0] in "\"'R" else lines


class Tokens:
    def __init__(self, text):
        text = INVISIBLE.sub(blank, text)
        ends = [i for i, c in enumerate(text) if c == "\n"]
        found = list(TOKEN.finditer(text))
        self.text = [match[0] for match in found]
        self.line = [1 + bisect.bisect_left(ends, match.start()) for match in found]
        self.partner = {}
        stack = []
        for i, token in enumerate(self.text):
            if token in OPENING:
                stack.append(i)
            elif token in CLOSING:
                if not stack or OPENING[self.text[stack[-1]]] != token:
                    raise ValueError(f"line {self.line[i]}: {token} closes nothing")
                self.partner[stack.pop()] = i
        if stack:
            raise ValueError(f"line {self.line[stack[-1]]}: {self.text[stack[-1]]} is not closed")

    def at(self, i):
        return self.text[i] if 0 <= i < len(self.text) else ""

    def after_angles(self, i):
        """The place after the > of the < at i."""
        depth = 0
        while i < len(self.text):
            if self.text[i] in OPENING:
                i = self.partner[i]
            depth += {"<": 1, ">": -1}.get(self.text[i], 0)
            i += 1
            if depth == 0:
                return i
        return i

    def lambda_body(self, i):
        """The brace of the lambda whose capture list begins at i; None if it is no lambda."""
        before = self.at(i - 1)
        if "[" in (before, self.at(i + 1)) or before in (")", "]", "operator", "delete"):
            return None
        if re.match(r"\w", before) and before not in ("return", "co_return", "co_yield", "co_await", "case", "else"):
            return None
        i = self.partner[i] + 1
        if self.at(i) not in ("(", "{", "<", "mutable", "noexcept", "constexpr", "__attribute__", "->", "["):
            return None
        while i < len(self.text):
            token = self.text[i]
            if token == "{":
                return i
            if token in (";", ")", "]", "}", ","):
                return None
            i = self.after_angles(i) if token == "<" else self.partner[i] + 1 if token in OPENING else i + 1
        return None

    def head(self, begin, end):
        """Places of the tokens in [begin, end), without template parameters, attributes and what is in brackets."""
        i = begin
        while i < end:
            token = self.text[i]
            if token == "template" and self.at(i + 1) == "<":
                i = self.after_angles(i + 1)
            elif token in OPENING:
                yield i
                i = self.partner[i] + 1
            else:
                yield i
                i += 1


def kind_of(tokens, begin, brace):
    """What the brace opens, where a declaration that begins at `begin` may stand; and the name of a function."""
    head = list(tokens.head(begin, brace))
    words = [tokens.text[i] for i in head]
    if "namespace" in words or words[:1] == ["extern"] and len(words) <= 2:
        return "scope", ""
    if CLASS_KEYS & set(words) and "(" not in words[:words.index(next(w for w in words if w in CLASS_KEYS))]:
        return "scope", ""
    name, place = "", None
    for n, word in enumerate(words):
        before = words[n - 1] if n else ""
        if word == "=" and before != "operator" and not (n > 1 and words[n - 2] == "operator"):
            return "initializer", ""
        if word == "(" and before not in NOT_DECLARATORS and before != "operator":
            name, place = before if words[n - 2:n - 1] != ["~"] else "~" + before, n
            if not re.match(r"\w", before):
                name = "operator" + before
            break
    if place is None:
        return "initializer", ""
    if words[-1:] == ["requires"] or words[-2:-1] == ["requires"] and words[-1] == "(":
        return "initializer", ""
    after = words[place + 1:]
    if ":" in after and re.match(r"\w|>", tokens.at(brace - 1)):
        return "initializer", ""  # of a member, in the list of a constructor
    return "function", name


def check(text):
    """Pairs of a line and what is wrong there."""
    tokens = Tokens(text)
    bodies = {}
    for i, token in enumerate(tokens.text):
        if token == "[" and (body := tokens.lambda_body(i)) is not None:
            bodies[body] = i
    found = []
    # Frames: kind, place of the first token, where the next declaration in it begins.
    frames = [["scope", 0, 0]]
    for i, token in enumerate(tokens.text):
        top = frames[-1]
        if token == "{":
            kind, name, first = "block", "", i
            if i in bodies:
                kind, first = "lambda", bodies[i]
                if "lambda" in enclosing(frames):
                    found.append((tokens.line[first], "lambda in a lambda"))
            elif top[0] == "scope":
                kind, name = kind_of(tokens, top[2], i)
                first = top[2]
            elif top[0] != "bracket" and CLASS_KEYS & set(tokens.text[top[2]:i]) and kind_of(tokens, top[2], i)[0] == "scope":
                kind = "scope"
            end = tokens.partner[i]
            lines = tokens.line[end] - tokens.line[first] + 1
            if kind == "function" and lines > MOST_LINES_OF_FUNCTION:
                found.append((tokens.line[first], f"{name} has {lines} lines"))
            if kind == "lambda" and lines > MOST_LINES_OF_LAMBDA:
                found.append((tokens.line[first], f"lambda has {lines} lines"))
            frames.append([kind, first, i + 1])
        elif token in OPENING:
            frames.append(["bracket", i, i + 1])
        elif token in CLOSING:
            kind = frames.pop()[0]
            if token == "}" and kind not in ("initializer", "lambda"):
                frames[-1][2] = i + 1
        elif token == ";" or token == ":" and tokens.at(i - 1) in ("public", "protected", "private"):
            top[2] = i + 1
    return found


def enclosing(frames):
    """Kinds of the frames around a place, up to the function whose body it is in."""
    for kind, _, _ in reversed(frames):
        yield kind
        if kind in ("function", "scope"):
            return


def self_test(file):
    text = re.sub(r"(?m)^(.*;)  // (\d+) lines$", lambda m: "\n".join([m[1]] * int(m[2])), file.read_text())
    expected = {(n, line.split("// found: ")[1]) for n, line in enumerate(text.splitlines(), 1) if "// found: " in line}
    found = set(check(text))
    for place in sorted(expected - found):
        print("not found:", *place)
    for place in sorted(found - expected):
        print("found, but not planted:", *place)
    return 0 if expected and found == expected else 1


def main(arguments):
    if arguments[0] == "--self-test":
        return self_test(pathlib.Path(arguments[1]))
    root = pathlib.Path(arguments[0]) / "annulus"
    files = []
    for folder in arguments[1:]:
        here = sorted(root.glob("*.hpp") if folder == "." else (root / folder).rglob("*.hpp"))
        if not here:
            print(f"no headers in {root / folder}")
            return 1
        files += here
    count = 0
    for file in files:
        try:
            found = check(file.read_text())
        except ValueError as error:
            found = [(0, str(error))]
        for line, complaint in found:
            print(f"{file.relative_to(root.parent)}:{line}: {complaint}")
            count += 1
    print(f"{len(files)} headers: {count} complaints; at most {MOST_LINES_OF_FUNCTION} lines for a function, "
          f"{MOST_LINES_OF_LAMBDA} for a lambda, and no lambda in a lambda")
    return 1 if count else 0


sys.exit(main(sys.argv[1:]))
