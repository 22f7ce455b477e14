"""Changes of a source: constants, operators, conditions, and statements without effect.

Numbers grow by 1, types of fields change their kind, and names get another character. Formatted
texts and those of several words are left out: they are messages.
"""

import ast
import re
from contextlib import suppress
from itertools import pairwise

SWAPS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.Add: "-",
    ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.LShift: ">>",
    ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&", ast.And: "or", ast.Or: "and",
}  # fmt: skip
REMOVED = ast.Expr, ast.AugAssign, ast.Raise, ast.If
DTYPE = re.compile(r"([<>]?\d*)([iufcS])(\d+)")
KINDS = {"i": "u", "u": "i", "f": "i", "c": "i", "S": "V"}


class Finder(ast.NodeVisitor):
    """Find changes of a source: start, end, new text, and the first line of the function, or 0."""

    def __init__(self, source):
        self.source, self.found, self.functions = source, [], [0]
        self.starts = [0, *(match.end() for match in re.finditer(rb"\n", source))]

    def changes(self):
        """Return all changes in the order of the source; a few of them do not compile."""
        self.visit(ast.parse(self.source))
        return sorted({*self.found})

    def compiles(self, begin, end, text):
        with suppress(SyntaxError):
            return compile(self.source[:begin] + text.encode() + self.source[end:], "", "exec")
        return None

    def change(self, node, text):
        begin = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        self.found.append((begin, end, text, self.functions[-1]))

    def swap(self, left, right, operator):
        """Replace the operator between two operands."""
        begin = self.starts[left.end_lineno - 1] + left.end_col_offset
        end = self.starts[right.lineno - 1] + right.col_offset
        word = re.search(rb"not\s+in|is\s+not|[a-z]+|[-+*/%<>=!&|]+", self.source[begin:end])
        if word and type(operator) in SWAPS:
            place = begin + word.start(), begin + word.end()
            self.found.append((*place, SWAPS[type(operator)], self.functions[-1]))

    def visit(self, node):
        """Change a node, then what is inside, but for types, documentation and formatted texts."""
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, REMOVED) and self.functions[-1]:
            self.change(node, "pass")
        super().visit(node)

    def visit_JoinedStr(self, node):
        pass

    def visit_AnnAssign(self, node):
        if node.value:
            self.visit(node.value)

    def visit_FunctionDef(self, node):
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        self.functions.append(min(part.lineno for part in (node, *node.decorator_list)))
        for statement in node.body:
            self.visit(statement)
        self.functions.pop()

    def visit_Compare(self, node):
        sides = node.left, *node.comparators
        for left, right, operator in zip(sides, node.comparators, node.ops, strict=False):
            self.swap(left, right, operator)
        self.generic_visit(node)

    def visit_BinOp(self, node):
        self.swap(node.left, node.right, node.op)
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        for left, right in pairwise(node.values):
            self.swap(left, right, node.op)
        self.generic_visit(node)

    def visit_UnaryOp(self, node):
        if isinstance(node.op, ast.Not):
            self.change(node, f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_IfExp(self, node):
        self.change(node.test, f"(not ({ast.unparse(node.test)}))")
        self.generic_visit(node)

    def visit_Constant(self, node):
        value = node.value
        kind = DTYPE.fullmatch(value) if isinstance(value, str) else None
        if kind:
            value = f"{kind[1]}{KINDS[kind[2]]}{kind[3]}"
        elif isinstance(value, bool):
            value = not value
        elif isinstance(value, int | float):
            value += 1
        elif isinstance(value, str | bytes) and len(value.split()) == 1:
            value += "_" if isinstance(value, str) else b"_"
        if value != node.value:
            self.change(node, repr(value))
