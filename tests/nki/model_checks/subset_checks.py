"""Checks of the lint for the Python subset: accepted and refused texts."""

import nki_model

from .checking import CHECKS, check, expect

HEADER = ("import nki\nimport nki.isa as nisa\nimport nki.language as nl\nimport nki.collectives as ncc\n"
          "def tile(p, f):\n    return nl.ndarray((p, f), dtype=nl.float32, buffer=nl.sbuf)\n"
          "@nki.jit\ndef kernel(x, n, flag):\n")

REFUSED = {
    "lambda": "    f = lambda a: a\n",
    "list comprehension": "    f = [i for i in range(4)]\n",
    "generator expression": "    f = sum(i for i in range(4))\n",
    "nested function": "    def g(a):\n        return a\n",
    "try": "    try:\n        n = 1\n    except ValueError:\n        n = 2\n",
    "generator": "    yield x\n",
    "while loop": "    while n > 0:\n        n = n - 1\n",
    "is": "    if flag is None:\n        n = 1\n",
    "is not": "    if flag is not None:\n        n = 1\n",
    "in": "    if n in (1, 2):\n        n = 1\n",
    "loop unpacking": "    for a, b in range(4):\n        n = a\n",
    "loop over a list": "    for a in [1, 2]:\n        n = a\n",
    "enumerate": "    for a in enumerate(x):\n        n = a\n",
    "unknown call": "    print(n)\n",
    "numpy call": "    n = np.zeros(4)\n",
    "method outside the list": "    y = x.permute(1, 0)\n",
    "call of a call": "    y = tile(1, 2)(3)\n",
    "dict": "    y = {\"a\": 1}\n",
    "set": "    y = {1, 2}\n",
    "f-string": "    y = f\"{n}\"\n",
    "assert without a message": "    assert n > 1\n",
    "assert of a name": "    assert n, \"text\"\n",
    "assert with a computed message": "    assert n > 1, f\"{n + 1}\"\n",
    "assert with a format": "    assert n > 1, f\"{n:3}\"\n",
    "raise": "    raise ValueError(n)\n",
    "assignment expression": "    y = (n := 3)\n",
    "starred": "    y = max(*x)\n",
    "double star": "    y = tile(**x)\n",
    "annotation": "    y: int = 3\n",
    "break": "    for i in range(4):\n        break\n",
    "matrix product": "    y = x @ x\n",
    "raw enumerator": "    nisa.tensor_copy(dst=x, src=x, engine=5)\n",
    "raw enumerator as text": "    nisa.activation(dst=x, op=nl.exp, data=x, reduce_cmd=\"reset_reduce\")\n",
    "buffer as text": "    y = nl.ndarray((1, 2), dtype=nl.float32, buffer=\"sbuf\")\n",
    "list to a kernel": "    y = kernel([1], 2, 3)\n",
    "import inside": "    import nki\n",
    "global": "    global n\n",
    "with something else": "    with open(n):\n        n = 1\n",
}
REFUSED_TEXTS = {
    "star arguments": "def f(*args):\n    return args\n",
    "keyword-only arguments": "def f(a, *, b):\n    return a\n",
    "class": "class A:\n    pass\n",
    "other imports": "import numpy\n",
    "from-import": "from nki import isa\n",
    "another alias": "import nki.isa as isa\n",
    "list default of a kernel": "import nki\n@nki.jit\ndef f(a=[]):\n    return a\n",
    "another decorator": "@cached\ndef f(a):\n    return a\n",
    "decorator call": "@nki.jit(mode=1)\ndef f(a):\n    return a\n",
    "async function": "async def f(a):\n    return a\n",
    "syntax error": "def f(:\n",
}
ACCEPTED = {
    "loops, conditions, arithmetic": "    a, b = n, n // 2\n    for i in range(0, n, 2):\n"
                                     "        if i == 0 and not flag:\n            b += i\n"
                                     "        elif i < 3 or flag == None:\n            b = -b if flag else b ** 2\n"
                                     "        else:\n            pass\n",
    "tensors": "    t = tile(128, 4)\n    r = x.reshape((2, 64)).ap(pattern=[[1, 2], [2, 4]], offset=0)\n"
               "    nisa.tensor_copy(dst=t[:, 0:2], src=t[:, 2:4], engine=nisa.engine.vector)\n    s = x.shape\n",
    "lists inside": "    parts = []\n    parts.append(tile(1, 2))\n    y = parts[0]\n",
    "built-ins": "    y = float(max(1, min(n, len(x.shape)))) + int(n)\n",
    "assert": "    assert n == 1, \"text\"\n    assert x.shape == (1, 2), f\"{x}: {n}; accepted: 1\"\n",
    "no_reorder": "    with nl.no_reorder():\n        nisa.memset(dst=x, value=0.0)\n",
    "collectives": "    ncc.collective_permute_implicit(srcs_by_channel=[[x]], dsts_by_channel=[[x]], "
                   "replica_group=ncc.ReplicaGroup(((0, 1),)))\n",
}


def _refused(text):
    """The lint must refuse the last lines of text, not the header before them."""

    def run():
        problems = nki_model.subset.check(text)
        expect(problems, "nothing was refused")
        first = HEADER.count("\n") if text.startswith(HEADER) else 0
        expect(all(int(p.split()[1].rstrip(":")) > first for p in problems), f"the header is refused: {problems}")

    return run


def _accepted(text):
    def run():
        problems = nki_model.subset.check(text)
        expect(not problems, f"refused: {problems}")

    return run


for _name, _body in REFUSED.items():
    CHECKS.append((f"subset refuses: {_name}", _refused(HEADER + _body + "    return x\n")))
for _name, _text in REFUSED_TEXTS.items():
    CHECKS.append((f"subset refuses: {_name}", _refused(_text)))
for _name, _body in ACCEPTED.items():
    CHECKS.append((f"subset accepts: {_name}", _accepted(HEADER + _body + "    return x\n")))


@check("subset: problems name their line")
def lines():
    problems = nki_model.subset.check(HEADER + "    y = 1\n    f = lambda a: a\n    return y\n")
    expect(problems == ["line 10: lambda is outside the subset"], f"{problems}")
