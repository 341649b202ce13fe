"""Refusals: every violated rule raises Refused, which names the instruction, the operand and the rule."""
import threading

_thread = threading.local()


class Refused(Exception):
    """A kernel does something that the device's documentation excludes."""


class KernelFailed(Exception):
    """A kernel thread failed; `cause` is the exception it raised, the message contains its traceback."""

    def __init__(self, text, cause):
        super().__init__(text)
        self.cause = cause


def current_instruction():
    return getattr(_thread, "instruction", "kernel")


def set_current_instruction(name):
    _thread.instruction = name


def refuse(operand, rule):
    where = current_instruction()
    raise Refused(f"{where}: {operand}: {rule}" if operand else f"{where}: {rule}")
