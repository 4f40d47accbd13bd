"""From a function in the language of loops to the text of an LLVM module."""

from __future__ import annotations

import ast
import inspect
import struct
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from tgbench.memory.packing.compiled.instructions import COMPARISONS, Instructions
from tgbench.memory.packing.compiled.kinds import (
    FLOAT,
    INT,
    TRUTH,
    UNSIGNED,
    Array,
    ArrayKind,
    Kind,
    KindError,
    Number,
    Operand,
    Results,
)

CASTS = {"float": FLOAT, "np.int64": INT, "np.uint64": UNSIGNED}
EXTREMES = {"min": "lt", "max": "gt"}
STEPS = {"1": "slt", "-1": "sgt"}  # of a range, and how its numbers compare with its end


def translated(function: Callable[..., Any], kinds: Sequence[Kind]) -> str:
    """The module in which `main` is the function, for arguments of these kinds.

    An array is passed as an address and the length of each axis. `main` returns an int64: what the
    function returns, or 0 for nothing. Raises `TypeError` for what is not in the language.
    """
    module = ModuleText()
    name, results = module.define(function, tuple(kinds))
    names = [f"a{i}" for i in range(len(kinds))]
    call = f"call {_returned(results)} @{name}({', '.join(_parameters(names, kinds))})"
    lines = [f"define i64 @main({', '.join(_parameters(names, kinds, 'noalias'))}) {{"]
    if not results:
        lines += [f"  {call}", "  ret i64 0"]
    elif results == (TRUTH,):
        lines += [f"  %found = {call}", "  %wide = zext i1 %found to i64", "  ret i64 %wide"]
    elif results == (INT,):
        lines += [f"  %found = {call}", "  ret i64 %found"]
    else:
        raise TypeError(f"{function.__name__} returns more than an integer or a truth")
    return "\n\n".join([*module.texts, "\n".join([*lines, "}"])])


@dataclass
class ModuleText:
    """The functions so far, once for each list of kinds that they are called with."""

    texts: list[str] = field(default_factory=list)
    known: dict[tuple[Any, tuple[Kind, ...]], tuple[str, Results]] = field(default_factory=dict)

    def define(self, function: Any, kinds: tuple[Kind, ...]) -> tuple[str, Results]:
        """The name of a function there, and what it returns."""
        if (function, kinds) not in self.known:
            own = FunctionText(self, function)
            name = f"{function.__name__}.{len(self.texts)}"
            self.texts.append(own.of(name, kinds))
            self.known[function, kinds] = name, own.results or ()
        return self.known[function, kinds]


def _parameters(names: Sequence[str], kinds: Sequence[Kind], promise: str = "") -> list[str]:
    parts = []
    for name, kind in zip(names, kinds, strict=True):
        if isinstance(kind, ArrayKind):
            parts.append(f"ptr {promise} %{name}")
            parts += [f"i64 %{name}.{axis}" for axis in range(kind.axes)]
        else:
            parts.append(f"{kind.llvm} %{name}")
    return parts


def _returned(results: Results) -> str:
    llvm = [kind.llvm for kind in results]
    if not llvm:
        return "void"
    return llvm[0] if len(llvm) == 1 else f"{{{', '.join(llvm)}}}"


class FunctionText:
    """One function on its way to text.

    Fields:
        results: the kinds that it returns, from its first `return` on.
    """

    def __init__(self, module: ModuleText, function: Any) -> None:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        assert isinstance(tree, ast.FunctionDef)
        self._module, self._function, self._tree = module, function, tree
        self._arrays: dict[str, Array] = {}
        self._to = Instructions()
        self._targets: list[tuple[str, str]] = []  # where `continue` and `break` go
        self._line = 0  # of the present statement
        self.results: Results | None = None

    def of(self, name: str, kinds: tuple[Kind, ...]) -> str:
        names = [arg.arg for arg in self._tree.args.args]
        try:
            if len(names) != len(kinds):
                raise KindError(f"takes {len(names)} arguments, not {len(kinds)}")
            self._take(names, kinds)
            self._body(self._tree.body)
            if self._to.is_open:
                self._return(())
        except KindError as error:
            code = self._function.__code__
            line = code.co_firstlineno + max(self._line, 1) - 1
            raise TypeError(f"{code.co_filename}:{line}, {code.co_name}: {error}") from None
        slots = [f"  %{own}.slot = alloca {kind.llvm}" for own, kind in self._to.slots.items()]
        parameters = ", ".join(_parameters(names, kinds, "noalias"))
        head = f"define internal {_returned(self.results or ())} @{name}({parameters}) nounwind {{"
        return "\n".join([head, "entry:", *slots, *self._to.lines, "}"])

    def _take(self, names: Sequence[str], kinds: Sequence[Kind]) -> None:
        for name, kind in zip(names, kinds, strict=True):
            if isinstance(kind, ArrayKind):
                lengths = tuple(f"%{name}.{axis}" for axis in range(kind.axes))
                self._arrays[name] = Array(kind, f"%{name}", lengths)
            else:
                self._to.write(name, Number(kind, f"%{name}"))

    def _refuse(self, node: ast.AST) -> NoReturn:
        raise KindError(f"`{ast.unparse(node)}` is not in the language of loops")

    # --- statements ---

    def _body(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if self._to.is_open:
                self._line = statement.lineno
                self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets, value):
                found = self._values(value)
                for target in targets:
                    self._assign(target, found)
            case ast.AugAssign(ast.Name(name), op, value) if name in self._to.slots:
                read = self._to.read(name)
                self._to.write(name, self._to.operation(op, read, self._number(value)))
            case ast.AugAssign(ast.Subscript() as target, op, value):
                place = self._place(target)
                read = self._is_number(target, self._to.load(place))
                self._to.store(place, self._to.operation(op, read, self._number(value)))
            case ast.If(test, body, orelse):
                self._if(test, body, orelse)
            case ast.While(test, body, orelse):
                self._while(test, body, orelse)
            case ast.For(ast.Name(name), ast.Call(ast.Name("range"), args, []), body, []):
                self._for(name, args, body)
            case ast.Continue():
                self._to.jump(self._targets[-1][0])
            case ast.Break():
                self._to.jump(self._targets[-1][1])
            case ast.Return(value):
                values = self._values(value) if value else ()
                self._return([self._is_number(node, own) for own in values])
            case ast.Expr(ast.Call() as call):
                self._values(call)
            case ast.Expr(ast.Constant(str())):
                pass
            case _:
                self._refuse(node)

    def _assign(self, target: ast.expr, found: tuple[Operand, ...]) -> None:
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        if len(targets) != len(found):
            self._refuse(target)
        for own, value in zip(targets, found, strict=True):
            match own, value:
                case ast.Name(name), _ if name in self._arrays:
                    raise KindError(f"{name} is another array already")
                case ast.Name(name), Array() if name not in self._to.slots:
                    self._arrays[name] = value
                case ast.Name(name), Number():
                    self._to.write(name, value)
                case ast.Subscript(), Number():
                    self._to.store(self._place(own), value)
                case _:
                    self._refuse(target)

    def _return(self, values: Sequence[Number]) -> None:
        if self.results is None:
            self.results = tuple(value.kind for value in values)
        if len(values) != len(self.results):
            raise KindError(f"returns {len(self.results)} values, and {len(values)}")
        fitted = [self._to.fitted(v, kind) for v, kind in zip(values, self.results, strict=True)]
        if len(fitted) < 2:
            self._to.end(f"ret {fitted[0].typed if fitted else 'void'}")
            return
        whole, packed = _returned(self.results), "undef"
        for place, value in enumerate(fitted):
            packed = self._to.register(f"insertvalue {whole} {packed}, {value.typed}, {place}")
        self._to.end(f"ret {whole} {packed}")

    def _if(self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt]) -> None:
        then, other, after = self._to.labels("then", "else", "after")
        self._branch(test, then, other)
        for label, statements in ((then, body), (other, orelse)):
            self._to.begin(label)
            self._body(statements)
            self._to.jump(after)
        self._to.begin_if_reached(after)

    def _while(self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt]) -> None:
        again, inside, failed, after = self._to.labels("while", "do", "failed", "after")
        self._to.jump(again)
        self._to.begin(again)
        if isinstance(test, ast.Constant) and test.value is True:
            self._to.jump(inside)
        else:
            self._branch(test, inside, failed)
        self._to.begin(inside)
        self._repeat(body, again, after)
        if self._to.begin_if_reached(failed):
            self._body(orelse)
            self._to.jump(after)
        self._to.begin_if_reached(after)

    def _for(self, name: str, args: list[ast.expr], body: list[ast.stmt]) -> None:
        step = ast.unparse(args[2]) if len(args) == 3 else "1"
        if step not in STEPS:
            self._refuse(args[2])
        begin, stop = [ast.Constant(0), *args] if len(args) == 1 else args[:2]
        again, inside, then, after = self._to.labels("for", "do", "next", "after")
        counter = f"{name}.{again}"  # the body may change the variable
        self._to.write(counter, self._to.fitted(self._number(begin), INT))
        end = self._to.fitted(self._number(stop), INT)
        self._to.jump(again)
        self._to.begin(again)
        at = self._to.read(counter)
        goes_on = self._to.number(TRUTH, f"icmp {STEPS[step]} {at.typed}, {end.text}")
        self._to.fork(goes_on, inside, after)
        self._to.begin(inside)
        self._assign(ast.Name(name), (at,))
        self._repeat(body, then, after)
        if self._to.begin_if_reached(then):
            self._to.write(counter, self._to.number(INT, f"add nsw {at.typed}, {step}"))
            self._to.jump(again)
        self._to.begin(after)

    def _repeat(self, body: list[ast.stmt], again: str, after: str) -> None:
        self._targets.append((again, after))
        self._body(body)
        self._targets.pop()
        self._to.jump(again)

    def _branch(self, test: ast.expr, then: str, other: str) -> None:
        """To one of two blocks; what decides is computed as far as it has to be."""
        match test:
            case ast.UnaryOp(ast.Not(), operand):
                self._branch(operand, other, then)
            case ast.BoolOp(op, [*rest, last]):
                for value in rest:
                    (following,) = self._to.labels("following")
                    if isinstance(op, ast.And):
                        self._branch(value, following, other)
                    else:
                        self._branch(value, then, following)
                    self._to.begin(following)
                self._branch(last, then, other)
            case _:
                self._to.fork(self._to.cast(self._number(test), TRUTH), then, other)

    # --- expressions ---

    def _number(self, node: ast.expr) -> Number:
        return self._is_number(node, self._value(node))

    def _is_number(self, node: ast.AST, value: Operand) -> Number:
        if not isinstance(value, Number):
            self._refuse(node)
        return value

    def _values(self, node: ast.expr) -> tuple[Operand, ...]:
        """One value; of a tuple, or of a call of a loop, as many as there are."""
        match node:
            case ast.Tuple(elements):
                return tuple(map(self._value, elements))
            case ast.Call(ast.Name(name), args, []) if self._is_loop(name):
                return tuple(self._called(self._function.__globals__[name].function, args))
        return (self._value(node),)

    def _is_loop(self, name: str) -> bool:
        return hasattr(self._function.__globals__.get(name), "function")

    def _called(self, function: Any, args: list[ast.expr]) -> Iterator[Operand]:
        values = list(map(self._value, args))
        name, results = self._module.define(function, tuple(value.kind for value in values))
        call = f"call {_returned(results)} @{name}({', '.join(value.typed for value in values)})"
        if not results:
            self._to.lines.append(f"  {call}")
            return
        found = self._to.register(call)
        for place, kind in enumerate(results):
            if len(results) == 1:
                yield Number(kind, found)
            else:
                code = f"extractvalue {_returned(results)} {found}, {place}"
                yield self._to.number(kind, code)

    def _value(self, node: ast.expr) -> Operand:
        match node:
            case ast.Constant(value):
                return self._literal(node, value)
            case ast.Name(name) if name in self._arrays:
                return self._arrays[name]
            case ast.Name(name) if name in self._to.slots:
                return self._to.read(name)
            case ast.Name(name):
                return self._literal(node, self._function.__globals__.get(name))
            case ast.Attribute(ast.Name("np"), "inf"):
                return self._literal(node, np.inf)
            case ast.Subscript():
                return self._to.load(self._place(node))
            case ast.BinOp(left, op, right):
                return self._to.operation(op, self._number(left), self._number(right))
            case ast.UnaryOp(ast.USub(), operand):
                return self._to.negative(self._number(operand))
            case ast.Compare(left, [op], [right]) if type(op) in COMPARISONS:
                name = COMPARISONS[type(op)]
                return self._to.compared(name, self._number(left), self._number(right))
            case ast.BoolOp() | ast.UnaryOp(ast.Not()):
                return self._either(node, ast.Constant(True), ast.Constant(False))
            case ast.IfExp(test, body, orelse):
                return self._either(test, body, orelse)
            case ast.Call(function, args, []):
                return self._applied(node, ast.unparse(function), args)
        self._refuse(node)

    def _applied(self, node: ast.expr, name: str, args: list[ast.expr]) -> Operand:
        if self._is_loop(name):
            found = self._values(node)
            return found[0] if len(found) == 1 else self._refuse(node)
        values = list(map(self._value, args))
        match values:
            case [Array() as array] if name == "len":
                return Number(INT, array.lengths[0])
            case [Number() as value] if name in CASTS:
                return self._to.cast(value, CASTS[name])
            case [Number() as left, Number() as right] if name in EXTREMES:
                return self._to.extreme(EXTREMES[name], left, right)
        self._refuse(node)

    def _literal(self, node: ast.expr, value: Any) -> Number:
        match value:
            case bool():
                return Number(TRUTH, str(value).lower())
            case int() if -(1 << 63) <= value < 1 << 63:
                return Number(INT, str(value))
            case int() if 0 < value < 1 << 64:
                return Number(UNSIGNED, str(value - (1 << 64)))
            case float():
                return Number(FLOAT, f"0x{struct.pack('>d', value).hex()}")
        self._refuse(node)

    def _place(self, node: ast.Subscript) -> Array:
        array = self._value(node.value)
        if not isinstance(array, Array):
            self._refuse(node)
        places = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return self._to.at(array, list(map(self._number, places)))

    def _either(self, test: ast.expr, body: ast.expr, orelse: ast.expr) -> Number:
        then, other, after = self._to.labels("then", "else", "after")
        self._branch(test, then, other)
        found = []
        for label, node in ((then, body), (other, orelse)):
            self._to.begin(label)
            found.append((self._number(node), self._to.block))
            self._to.jump(after)
        self._to.begin(after)
        return self._to.joined(found)
