"""Numpy model of the NKI 0.3+ instructions, which executes the kernels that this project prints.

It follows the public documentation of the instructions and refuses what that documentation excludes. It models values,
rounding, definedness, memories and ordering; not time, not total SBUF or PSUM use, not the device's polynomials.
"""
from . import subset
from .faults import KernelFailed, Refused
from .launch import HbmArray, bfloat16, float16, launch, run_on_core
from .modules import install

__all__ = ["HbmArray", "KernelFailed", "Refused", "bfloat16", "float16", "install", "launch", "run_on_core", "subset"]
