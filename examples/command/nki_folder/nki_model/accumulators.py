"""Accumulator registers of reductions: one set in ScalarE, one set shared by several VectorE instructions."""
import numpy as np

from .core import current
from .enums import reduce_cmd as commands
from .enums import require_member
from .faults import refuse
from .operands import require_column, require_destination, require_operator, rows


class Chain:
    """A reduction in progress: operator, partitions, values, number of accumulations, whether it was read."""

    def __init__(self, operator, place, values):
        self.operator = operator
        self.place = place
        self.values = values
        self.accumulated = 0
        self.taken = False
        self.clobbered = False


def accumulate(slot, operator, values, place, command, result, initial=None, negate=False, idle_clobbers=False):
    """Accumulates values [P, F] (float32, before rounding) into the registers `slot` of the current core.

    place: (start partition, partitions) of dst. result: [P,1] tile that receives the registers, or None.
    """
    require_member(command, commands, "reduce_cmd")
    core = current()
    chain = getattr(core, slot)
    if command is commands.idle:
        if chain is not None and idle_clobbers:
            chain.clobbered = True
        if result is None:
            return
    elif command is commands.reduce:
        _require_own_chain(chain, operator, place)
    else:
        # A single VectorE instruction resets by default, so only a chain of at least two must be read.
        unread_allowed = 1 if idle_clobbers else 0
        if chain is not None and not chain.taken and not chain.clobbered and chain.accumulated > unread_allowed:
            refuse("reduce_cmd", "starts a chain while another one was not read: chains must not be interleaved")
        chain = Chain(operator, place, _start(operator, place[1], command, initial))
        setattr(core, slot, chain)
    if command in (commands.reduce, commands.reset_reduce, commands.load_reduce):
        with np.errstate(over="ignore", invalid="ignore"):
            chain.values = operator.binary(chain.values, operator.fold.reduce(values, axis=1))
        chain.accumulated += 1
    if result is not None:
        _require_own_chain(chain, operator, place)
        require_destination(result, "reduce_res")
        require_column(result, "reduce_res", place[1])
        chain.taken = True
        result.write(-chain.values if negate else chain.values)


def _start(operator, partitions, command, initial):
    if command is not commands.load_reduce:
        if initial is not None:
            refuse("reduce_init", "is used with reduce_cmd.load_reduce only")
        return np.full(partitions, operator.identity, np.float32)
    if initial is None:
        refuse("reduce_init", "reduce_cmd.load_reduce needs it")
    if isinstance(initial, (int, float)):
        return np.full(partitions, initial, np.float32)
    require_column(initial, "reduce_init", partitions, fp32=True)
    return rows(initial)[:, 0]


def _require_own_chain(chain, operator, place):
    if chain is None:
        refuse("reduce_cmd", "a chain starts with reset_reduce (or reset): the registers hold nothing")
    if chain.clobbered:
        refuse("reduce_cmd", "an idle instruction in between may have changed the registers: start with reset_reduce")
    if chain.operator is not operator or chain.place != place:
        refuse("reduce_cmd", f"continues with {operator!r} on (start, partitions) {place}, but the registers hold "
                             f"{chain.operator!r} on {chain.place}: chains must not be interleaved")


def require_reduction(reduce_op, accepted):
    require_operator(reduce_op, "reduce_op", "fold", accepted)
