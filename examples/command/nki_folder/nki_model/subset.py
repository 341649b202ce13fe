"""Lint for the Python subset that both NKI front ends accept; everything not listed here is refused."""
import ast

MODULES = {"nki": "nki", "nki.isa": "nisa", "nki.language": "nl", "nki.collectives": "ncc"}
BUILT_IN_CALLS = {"range", "len", "float", "int", "min", "max"}
METHODS = {"ap", "reshape", "append"}
ENUM_KEYWORDS = {"engine", "reduce_cmd", "dge_mode", "oob_mode", "perf_mode", "dma_engine"}

STATEMENTS = (ast.FunctionDef, ast.Return, ast.Assign, ast.AugAssign, ast.For, ast.If, ast.Expr, ast.Pass, ast.With,
              ast.Import, ast.Assert)
EXPRESSIONS = (ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare, ast.Call, ast.Constant, ast.Attribute,
               ast.Subscript, ast.Name, ast.List, ast.Tuple, ast.Slice)
PARTS = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop, ast.arguments, ast.arg, ast.keyword,
         ast.alias, ast.withitem, ast.Module)
REFUSED_OPERATORS = {ast.Is: "`is`", ast.IsNot: "`is not`", ast.In: "`in`", ast.NotIn: "`not in`", ast.MatMult: "`@`"}
NAMES = {
    ast.Lambda: "lambda", ast.ListComp: "comprehension", ast.SetComp: "comprehension", ast.DictComp: "comprehension",
    ast.GeneratorExp: "generator expression", ast.Yield: "generator", ast.YieldFrom: "generator", ast.Try: "try",
    ast.Raise: "raise", ast.While: "while loop", ast.ClassDef: "class", ast.Dict: "dict display",
    ast.Set: "set display",
    ast.JoinedStr: "f-string", ast.Starred: "starred expression", ast.NamedExpr: "assignment expression",
    ast.Global: "global", ast.Nonlocal: "nonlocal", ast.Delete: "del",
    ast.ImportFrom: "from-import", ast.AsyncFunctionDef: "async function", ast.Await: "await",
    ast.AnnAssign: "annotation",
    ast.Break: "break", ast.Continue: "continue",
}


def check(source_text):
    """Violations as "line N: ..." strings, in line order; empty if the text is inside the subset."""
    try:
        tree = ast.parse(source_text)
    except SyntaxError as error:
        return [f"line {error.lineno}: {error.msg}"]
    lint = _Lint(tree)
    lint.visit(tree)
    return [text for _, text in sorted(set(lint.problems))]


def _is_name(node, name):
    return isinstance(node, ast.Name) and node.id == name


def _is_message(node):
    """True for a text, and for an f-string that only inserts names, which the vendor's kernels have in their asserts."""
    if not isinstance(node, ast.JoinedStr):
        return isinstance(node, ast.Constant)
    inserted = [part for part in node.values if isinstance(part, ast.FormattedValue)]
    return all(isinstance(part.value, ast.Name) and part.conversion == -1 and not part.format_spec for part in inserted)


class _Lint(ast.NodeVisitor):
    def __init__(self, tree):
        self.problems = []
        self.depth = 0
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.kernels = {name for name, node in self.functions.items() if node.decorator_list}
        self.aliases = set()

    def report(self, node, text):
        self.problems.append((node.lineno, f"line {node.lineno}: {text}"))

    def visit(self, node):
        known = STATEMENTS + EXPRESSIONS + PARTS
        if type(node) in REFUSED_OPERATORS:
            return
        if not isinstance(node, known):
            name = NAMES.get(type(node), type(node).__name__)
            if hasattr(node, "lineno"):
                self.report(node, f"{name} is outside the subset")
            self.generic_visit(node)
            return
        getattr(self, "visit_" + type(node).__name__, self.generic_visit)(node)

    def visit_Import(self, node):
        if self.depth:
            self.report(node, "import inside a function")
        for alias in node.names:
            if alias.name not in MODULES:
                self.report(node, f"import of {alias.name}; accepted: {sorted(MODULES)}")
            elif (alias.asname or alias.name) != MODULES[alias.name]:
                self.report(node, f"{alias.name} is imported as {MODULES[alias.name]}")
            else:
                self.aliases.add(MODULES[alias.name])

    def visit_FunctionDef(self, node):
        if self.depth:
            self.report(node, "nested function")
        for decorator in node.decorator_list:
            if not (isinstance(decorator, ast.Attribute) and _is_name(decorator.value,
                                                                      "nki") and decorator.attr == "jit"):
                self.report(decorator, "the only decorator is nki.jit")
        arguments = node.args
        if arguments.vararg or arguments.kwarg:
            self.report(node, "*args and **kwargs")
        if arguments.kwonlyargs:
            self.report(node, "keyword-only arguments")
        if arguments.posonlyargs:
            self.report(node, "positional-only arguments")
        for argument in arguments.args:
            if argument.annotation is not None:
                self.report(node, "annotation is outside the subset")
        for default in arguments.defaults + [d for d in arguments.kw_defaults if d is not None]:
            if node.decorator_list and isinstance(default, ast.List):
                self.report(default, "list as a kernel argument")
            self.visit(default)
        self.depth += 1
        for statement in node.body:
            self.visit(statement)
        self.depth -= 1

    def visit_Assert(self, node):
        if not isinstance(node.test, ast.Compare) or not _is_message(node.msg):
            self.report(node, "an assert compares and has a message, of text and names")
        self.visit(node.test)

    def visit_For(self, node):
        if not isinstance(node.target, ast.Name):
            self.report(node, "the loop target must be one name, not an unpacking")
        if node.orelse:
            self.report(node, "else of a for loop")
        call = node.iter
        is_range = isinstance(call, ast.Call) and (_is_name(call.func, "range") or (
            isinstance(call.func, ast.Attribute) and _is_name(call.func.value,
                                                              "nl") and call.func.attr.endswith("_range")))
        if not is_range:
            self.report(node, "loops run over range(...) only")
        self.generic_visit(node)

    def visit_With(self, node):
        for item in node.items:
            call = item.context_expr
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
                    and _is_name(call.func.value, "nl") and call.func.attr == "no_reorder") or item.optional_vars:
                self.report(node, "with is for nl.no_reorder() only")
        self.generic_visit(node)

    def visit_Compare(self, node):
        for operator in node.ops:
            if type(operator) in REFUSED_OPERATORS:
                self.report(node, f"{REFUSED_OPERATORS[type(operator)]} is outside the subset")
        self.generic_visit(node)

    def visit_BinOp(self, node):
        if type(node.op) in REFUSED_OPERATORS:
            self.report(node, f"{REFUSED_OPERATORS[type(node.op)]} is outside the subset")
        self.generic_visit(node)

    def visit_Call(self, node):
        function = node.func
        if isinstance(function, ast.Name):
            if function.id not in BUILT_IN_CALLS and function.id not in self.functions:
                self.report(node, f"call of {function.id}; accepted: functions of this module, "
                                  f"{sorted(BUILT_IN_CALLS)}")
            if function.id in self.kernels:
                for value in node.args + [keyword.value for keyword in node.keywords]:
                    if isinstance(value, ast.List):
                        self.report(value, "list as a kernel argument")
        elif isinstance(function, ast.Attribute):
            root = function.value
            of_module = isinstance(root, ast.Name) and root.id in self.aliases
            if not of_module and function.attr not in METHODS:
                self.report(node, f"call of .{function.attr}; accepted: methods {sorted(METHODS)} and the nki modules")
        else:
            self.report(node, "only named functions are called")
        for keyword in node.keywords:
            self._keyword(node, keyword)
        self.generic_visit(node)

    def _keyword(self, call, keyword):
        value = keyword.value
        if keyword.arg is None:
            self.report(call, "** in a call")
        elif isinstance(value, ast.Constant):
            if keyword.arg in ENUM_KEYWORDS and not (value.value is None):
                self.report(call, f"{keyword.arg}={value.value!r}: an enumerator, not a raw value")
            if keyword.arg in ("buffer", "dtype") and isinstance(value.value, str):
                self.report(call, f"{keyword.arg}={value.value!r}: an nl name, not a string")
