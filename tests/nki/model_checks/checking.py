"""Registry of named checks, and tiles for their operands."""
import numpy as np

import nki_model

nki_model.install()

import nki.isa as nisa  # noqa: E402  (the model has to be installed first)
import nki.language as nl  # noqa: E402

CHECKS = []


def check(name):
    """Decorator that registers a function without arguments; the check passes if it returns."""

    def register(function):
        CHECKS.append((name, function))
        return function

    return register


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def expect_equal(got, wanted, text):
    got, wanted = np.asarray(got), np.asarray(wanted)
    expect(got.shape == wanted.shape, f"{text}: shape {got.shape}, wanted {wanted.shape}")
    expect(np.array_equal(got, wanted, equal_nan=got.dtype.kind == "f"), f"{text}: got\n{got}\nwanted\n{wanted}")


def expect_close(got, wanted, bound, text):
    error = np.abs(np.asarray(got, np.float64) - wanted)
    expect(bool((error <= bound).all()), f"{text}: error {error.max()}, {np.max(error - bound)} above its bound")


def expect_refused(body, *fragments, target="trn2"):
    """body() inside a kernel must be refused with a message that contains every fragment."""
    try:
        nki_model.run_on_core(body, target=target)
    except nki_model.Refused as refusal:
        for fragment in fragments:
            expect(fragment in str(refusal), f"message {str(refusal)!r} lacks {fragment!r}")
        return
    raise AssertionError(f"nothing was refused; expected {fragments}")


def expect_launch_refused(kernel, lnc, arguments, *fragments, **options):
    """The launch must fail with a message that contains every fragment."""
    try:
        nki_model.launch(kernel, lnc, arguments, **options)
    except nki_model.KernelFailed as failure:
        for fragment in fragments:
            expect(fragment in str(failure), f"message {str(failure)!r} lacks {fragment!r}")
        return
    raise AssertionError(f"nothing was refused; expected {fragments}")


def sbuf(values, dtype=nl.float32):
    """Inside a kernel: an SBUF tile with these values."""
    values = np.asarray(values)
    tile = nl.ndarray(values.shape, dtype=dtype, buffer=nl.sbuf)
    tile.write(values)
    return tile


def psum(values):
    """Inside a kernel: a float32 PSUM tile with these values."""
    values = np.asarray(values)
    tile = nl.ndarray(values.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.tensor_copy(dst=tile, src=sbuf(values))
    return tile


def empty(shape, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(tuple(shape), dtype=dtype, buffer=buffer)


def numbers(*shape, seed=7):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def on_core(body, target="trn2"):
    """Runs body() on one core and returns its tiles as arrays."""

    def wrapped():
        result = body()
        return tuple(t.to_numpy() for t in result) if isinstance(result, tuple) else result.to_numpy()

    return nki_model.run_on_core(wrapped, target=target)
