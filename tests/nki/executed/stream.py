"""The instructions that the text of a kernel executes, recorded without arithmetic, in the form of stream_file.hpp."""
import sys
import types


class Recorded:
    """A tensor or tile, or a part of it: name, first element, strides and counts."""

    def __init__(self, name, shape, on_chip, offset=0, strides=None, counts=None):
        self.name, self.shape, self.on_chip, self.offset = name, shape, on_chip, offset
        self.strides, self.counts = strides or row_major(shape), counts or shape

    def __getitem__(self, key):
        rows, columns = key
        width = self.shape[1]
        assert self.on_chip and 0 <= rows.start < rows.stop <= self.shape[0] and 0 <= columns.start < columns.stop <= width
        return Recorded(self.name, self.shape, True, rows.start * width + columns.start, (width, 1),
                        (rows.stop - rows.start, columns.stop - columns.start))

    def ap(self, pattern, offset, scalar_offset=None, indirect_dim=None):
        strides, counts = zip(*pattern)
        return Recorded(self.name, self.shape, self.on_chip, offset, strides, counts)

    def text(self):
        axes = []
        for stride, count in zip(self.strides, self.counts):
            if count == 1:
                continue
            if axes and axes[-1][0] == stride * count:
                axes[-1] = (stride, axes[-1][1] * count)
            else:
                axes.append((stride, count))
        return f"{self.name}@{self.offset}" + "".join(f":{stride}x{count}" for stride, count in axes)


def row_major(shape):
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return strides


class Anything:
    """A module of names that mean nothing here."""

    def __getattr__(self, name):
        return Anything()


def record(text, shapes, cores, constants):
    """Lines of the stream. shapes: {name: shape} of the kernel's tensors; constants: its other arguments."""
    lines, tiles = [], []

    def instruction(name):
        def issue(**keywords):
            parts = [name]
            for keyword, value in keywords.items():
                value = value[0][0] if keyword.endswith("by_channel") else value
                if isinstance(value, Recorded):
                    parts.append(f"{keyword}={value.text()}")
                elif keyword in ("range_start", "iteration_id", "offset"):
                    parts.append(f"{keyword}={value}")
            lines.append(" ".join(parts))
        return issue

    class Instructions(Anything):
        def __getattr__(self, name):
            if name == "register_alloc":  # its register is loaded by the next instruction
                return Anything
            return Anything() if name in ("engine", "reduce_cmd") else instruction(name)

    def ndarray(shape, dtype, buffer, name=None):
        if name is not None:
            return Recorded(name, shape, False)
        tiles.append(Recorded(f"t{len(tiles)}", shape, True))
        return tiles[-1]

    core = 0
    language, collectives = Anything(), Instructions()
    language.ndarray, language.program_id = ndarray, lambda axis: core
    collectives.ReplicaGroup = lambda groups: groups
    nki = types.ModuleType("nki")
    nki.jit, nki.isa, nki.language, nki.collectives = lambda function: function, Instructions(), language, collectives
    modules = {"nki": nki, "nki.isa": nki.isa, "nki.language": language, "nki.collectives": collectives}
    before = {name: sys.modules[name] for name in modules}
    sys.modules.update(modules)
    try:
        module = {}
        exec(compile(text, "kernel.py", "exec"), module)
        kernel = module[text.split("\n@nki.jit\ndef ")[1].split("(")[0]]
        for core in range(cores):
            tiles.clear()
            lines.append(f"core {core}")
            tensors = [Recorded(name, shape, False) for name, shape in shapes.items()]
            kernel(*tensors, *constants)
    finally:
        sys.modules.update(before)
    return lines


def compare(text, shapes, cores, constants, program_lines):
    """Raises AssertionError at the first instruction of the text that is not the program's."""
    lines = record(text, shapes, cores, constants)
    for number, (found, wanted) in enumerate(zip(lines, program_lines)):
        if found != wanted:
            raise AssertionError(f"instruction {number} of the text is {found}; the program's is {wanted}")
    if len(lines) != len(program_lines):
        raise AssertionError(f"the text executes {len(lines)} instructions, the program {len(program_lines)}")
