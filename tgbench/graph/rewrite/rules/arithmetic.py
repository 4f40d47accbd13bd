"""Distributing and factoring, signs, quotients, powers: what holds of all real numbers.

Nothing here changes where a result is finite: √x·√x is not x below 0, x / x not 1 at 0.
"""

from __future__ import annotations

from tgbench.graph.ops import exp, reciprocal, rsqrt, sqrt
from tgbench.graph.rewrite.pattern import PatternMatch
from tgbench.graph.rewrite.rule import AnyRule, Rule


def _quotient_is_fixed(match: PatternMatch) -> bool:
    """A weight in the denominator, and something else above it: once, not in every run."""
    return match.are_fixed("b") and match.are_near("b") and not match.are_fixed("a")


def _is_moderate(match: PatternMatch) -> bool:
    """(1 − m) · −1e9 is 0 where m is 1; of −1e9 and m · 1e9, added to one after the other, that
    would leave nothing of a score.
    """
    return match.are_moderate("a")


def _are_near(match: PatternMatch) -> bool:
    return match.are_near("a", "b", "c")


ARITHMETIC: tuple[AnyRule, ...] = (
    Rule("distribute", ("mul", "a", ("add", "b", "c")), lambda a, b, c: a * b + a * c, grows=True,
         when=_is_moderate),
    Rule("distribute over less", ("mul", "a", ("sub", "b", "c")), lambda a, b, c: a * b - a * c,
         grows=True, when=_is_moderate),
    Rule("distribute quotient", ("div", ("add", "a", "b"), "c"), lambda a, b, c: a / c + b / c,
         grows=True),
    Rule("factor", ("add", ("mul", "a", "b"), ("mul", "a", "c")), lambda a, b, c: a * (b + c)),
    Rule("factor less", ("sub", ("mul", "a", "b"), ("mul", "a", "c")), lambda a, b, c: a * (b - c)),
    Rule("factor one", ("add", "a", ("mul", "a", "b")), lambda a, b: a * (b + 1.0), grows=True),
    Rule("factor quotient", ("add", ("div", "a", "c"), ("div", "b", "c")),
         lambda a, b, c: (a + b) / c),
    Rule("less is plus minus", ("sub", "a", "b"), lambda a, b: a + (-b), rounds=False),
    Rule("plus minus is less", ("add", "a", ("neg", "b")), lambda a, b: a - b, rounds=False),
    Rule("less minus is plus", ("sub", "a", ("neg", "b")), lambda a, b: a + b, rounds=False),
    Rule("sign of a product", ("mul", ("neg", "a"), "b"), lambda a, b: -(a * b), rounds=False),
    Rule("product of a sign", ("neg", ("mul", "a", "b")), lambda a, b: (-a) * b, rounds=False),
    Rule("sign of a quotient", ("div", ("neg", "a"), "b"), lambda a, b: -(a / b), rounds=False),
    Rule("by a number is times", ("div", "a", "b"), lambda a, b: a * reciprocal(b),
         when=_quotient_is_fixed),
    Rule("times one over is by", ("mul", "a", ("reciprocal", "b")), lambda a, b: a / b),
    Rule("quotients at once", ("div", ("div", "a", "b"), "c"), lambda a, b, c: a / (b * c),
         when=_are_near),
    Rule("quotient of a product", ("mul", ("div", "a", "c"), "b"), lambda a, b, c: (a * b) / c,
         when=_are_near),
    Rule("product of a quotient", ("div", ("mul", "a", "b"), "c"), lambda a, b, c: (a / c) * b,
         when=_are_near),
    Rule("by a root", ("div", "a", ("sqrt", "b")), lambda a, b: a * rsqrt(b)),
    Rule("one over a root", ("reciprocal", ("sqrt", "a")), lambda a: rsqrt(a)),
    Rule("root of one over", ("sqrt", ("reciprocal", "a")), lambda a: rsqrt(a)),
    Rule("product of powers", ("mul", ("exp", "a"), ("exp", "b")), lambda a, b: exp(a + b)),
    Rule("square", ("pow", "a", 2.0), lambda a: a * a),
    Rule("cube", ("pow", "a", 3.0), lambda a: a * a * a),
    Rule("power of one half", ("pow", "a", 0.5), lambda a: sqrt(a)),
    Rule("power of minus one half", ("pow", "a", -0.5), lambda a: rsqrt(a)),
    Rule("power of minus one", ("pow", "a", -1.0), lambda a: reciprocal(a)),
    Rule("square as a power", ("mul", "a", "a"), lambda a: a**2.0, grows=True),
)  # fmt: skip
