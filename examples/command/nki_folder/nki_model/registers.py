"""Model of the scalar registers of the engine sequencers."""
from .core import instruction
from .faults import refuse
from .operands import require_tensor
from .storage import Memory
from .tensor import Register


def _require_register(value, operand):
    if not isinstance(value, Register):
        refuse(operand, f"must be a register, not {value!r}")


def _require_word(value, operand):
    require_tensor(value, operand)
    if value.buffer is Memory.psum or value.size != 1 or value.dtype.item_bytes != 4 or not value.dtype.is_integer:
        refuse(operand, f"{value!r}; one 32-bit integer in SBUF or HBM")


def _value_of(value, operand):
    if isinstance(value, Register):
        return value.load(operand)
    if type(value) is not int or not -2**31 <= value < 2**32:
        refuse(operand, f"{value!r}; an int of 32 bits or a register")
    return value


@instruction
def register_alloc(x=None):
    """A register, set to x (an int or the value of a register) or unset."""
    return Register(None if x is None else _value_of(x, "x"))


@instruction
def register_move(dst, src):
    _require_register(dst, "dst")
    dst.value = _value_of(src, "src")


@instruction
def register_load(dst, src):
    _require_register(dst, "dst")
    _require_word(src, "src")
    dst.value = int(src.read().reshape(-1)[0])


@instruction
def register_store(dst, src):
    _require_word(dst, "dst")
    _require_register(src, "src")
    dst.write(dst.dtype.round([[src.load("src")]]), exact=True)
