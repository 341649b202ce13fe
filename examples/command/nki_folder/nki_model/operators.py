"""The nl.* operators, which kernels pass to instructions and never call."""
import numpy as np


class Operator:
    """One operator and its roles.

    binary(x, y), unary(x), activation(x): float32 arrays in and out; None where the operator has no such role.
    fold: numpy ufunc whose .reduce gives the reduction. identity: accumulator value after a reset.
    bitwise: works on integer bits. interval: (low, high) of |x| in which ScalarE is specified; signed: also for x < 0.
    """

    def __init__(self, name, binary=None, unary=None, activation=None, fold=None, identity=None, bitwise=False,
                 interval=None, signed=False):
        self.name = name
        self.binary = binary
        self.unary = unary
        self.activation = activation
        self.fold = fold
        self.identity = identity
        self.bitwise = bitwise
        self.interval = interval
        self.signed = signed

    def __repr__(self):
        return f"nl.{self.name}"

    def __call__(self, *arguments, **keywords):
        raise TypeError(f"{self!r} is an operator name for an instruction, not a function")


def _truth(function):
    return lambda x, y: function(x, y).astype(np.float32)


def _sigmoid(x):
    return np.float32(1) / (np.float32(1) + np.exp(-x))


def _reciprocal(x):
    return np.float32(1) / x


def _rsqrt(x):
    return np.float32(1) / np.sqrt(x)


def _relu(x):
    return np.maximum(x, np.float32(0))


_LIST = (
    Operator("add", np.add, fold=np.add, identity=0.0),
    Operator("subtract", np.subtract),
    Operator("multiply", np.multiply, fold=np.multiply, identity=1.0),
    Operator("maximum", np.maximum, fold=np.maximum, identity=-np.inf),
    Operator("minimum", np.minimum, fold=np.minimum, identity=np.inf),
    Operator("equal", _truth(np.equal)),
    Operator("not_equal", _truth(np.not_equal)),
    Operator("greater", _truth(np.greater)),
    Operator("greater_equal", _truth(np.greater_equal)),
    Operator("less", _truth(np.less)),
    Operator("less_equal", _truth(np.less_equal)),
    Operator("logical_and", _truth(np.logical_and)),
    Operator("logical_or", _truth(np.logical_or)),
    Operator("logical_xor", _truth(np.logical_xor)),
    Operator("power", np.power),
    Operator("abs_max", lambda x, y: np.maximum(np.abs(x), np.abs(y))),
    Operator("abs_min", lambda x, y: np.minimum(np.abs(x), np.abs(y))),
    Operator("bitwise_and", np.bitwise_and, fold=np.bitwise_and, bitwise=True),
    Operator("bitwise_or", np.bitwise_or, fold=np.bitwise_or, bitwise=True),
    Operator("bitwise_xor", np.bitwise_xor, fold=np.bitwise_xor, bitwise=True),
    Operator("left_shift", np.left_shift, bitwise=True),
    Operator("right_shift", np.right_shift, bitwise=True),
    Operator("invert", unary=np.invert, bitwise=True),
    Operator("abs", unary=np.abs, activation=np.abs),
    Operator("square", unary=np.square, activation=np.square),
    Operator("relu", unary=_relu, activation=_relu),
    Operator("rsqrt", unary=_rsqrt, activation=_rsqrt, interval=(2.0**-87, 2.0**97)),
    Operator("reciprocal", unary=_reciprocal, activation=_reciprocal, interval=(2.0**-42, 2.0**42), signed=True),
    Operator("copy", activation=lambda x: x),
    Operator("exp", activation=np.exp),
    Operator("tanh", activation=np.tanh),
    Operator("sigmoid", activation=_sigmoid),
    Operator("silu", activation=lambda x: x * _sigmoid(x)),
    Operator("sign", activation=np.sign),
    Operator("softplus", activation=lambda x: np.logaddexp(np.float32(0), x)),
    Operator("log", activation=np.log, interval=(2.0**-64, 2.0**64)),
    Operator("sqrt", activation=np.sqrt, interval=(2.0**-116, 2.0**118)),
)
OPERATORS = {operator.name: operator for operator in _LIST}
COMPARISONS = tuple(OPERATORS[n] for n in ("equal", "less", "less_equal", "greater", "greater_equal", "not_equal"))
ADD = OPERATORS["add"]
MULTIPLY = OPERATORS["multiply"]
SUBTRACT = OPERATORS["subtract"]
MAXIMUM = OPERATORS["maximum"]
MINIMUM = OPERATORS["minimum"]
POWER = OPERATORS["power"]
RSQRT = OPERATORS["rsqrt"]
