"""Calls that printed kernels may hold, for each NKI version, as data; and a check of a kernel's text against it.

Source: the API reference pages of the NKI documentation, SDK 2.29 to 2.33, one page a name (nki.isa.<name>,
nki.collectives.<name>, nki.language.<name>), their common fields, and the release notes of NKI for what a version added.
"""
import ast

VERSIONS = ("0.3", "0.4", "0.5", "0.6", "0.7")

ARITHMETIC = set("add subtract multiply maximum minimum equal not_equal greater greater_equal less less_equal logical_and "
                 "logical_or logical_xor power abs_max abs_min".split())
FUNCTIONS = set("copy square sigmoid relu gelu silu tanh softplus exp sign abs log sqrt rsqrt reciprocal".split())
TYPES = set("bool_ int8 int16 int32 uint8 uint16 uint32 float16 bfloat16 tfloat32 float32".split())
BUFFERS = {"sbuf", "psum", "private_hbm", "shared_hbm"}
LANGUAGE = ARITHMETIC | FUNCTIONS | TYPES | BUFFERS | {"ndarray", "program_id"}
COMMANDS = {"idle", "reset", "reduce", "reset_reduce", "load_reduce"}

# required: keywords without a default. optional: the oldest version that has the keyword; every call also takes name.
# engines: what engine= may say. rows, columns: most partitions, and most elements of a partition, of an operand that is
# a slice with constant bounds. targets: chips that have the instruction.
ANY = "0.3"
WIDE = 1 << 16
SIGNATURES = {
    "nisa.nc_matmul": {
        "required": "dst stationary moving",
        "optional": {"is_stationary_onezero": ANY, "is_moving_onezero": ANY, "is_transpose": ANY, "accumulate": ANY,
                     "tile_position": ANY, "tile_size": ANY, "perf_mode": ANY},
        "columns": {"dst": 512, "stationary": 128, "moving": 512},
    },
    "nisa.nc_transpose": {"required": "dst data", "optional": {"engine": ANY}, "engines": {"tensor", "vector"},
                          "columns": {"dst": 128, "data": 128}},
    "nisa.dma_copy": {"required": "dst src", "optional": {"oob_mode": ANY, "dge_mode": ANY, "engine": ANY, "priority": "0.4"},
                      "engines": {"sync", "scalar"}},
    "nisa.dma_transpose": {"required": "dst src",
                           "optional": {"axes": ANY, "dge_mode": ANY, "oob_mode": ANY, "priority": "0.4"}},
    "nisa.activation": {"required": "dst op data",
                        "optional": {"bias": ANY, "scale": ANY, "reduce_op": ANY, "reduce_res": ANY, "reduce_cmd": ANY}},
    "nisa.tensor_tensor": {"required": "dst data1 data2 op", "optional": {"engine": ANY}, "engines": {"vector", "gpsimd"}},
    # gpsimd: rsqrt alone, which no kernel uses.
    "nisa.tensor_scalar": {"required": "dst data op0 operand0",
                           "optional": {"reverse0": ANY, "op1": ANY, "operand1": ANY, "reverse1": ANY, "engine": ANY},
                           "engines": {"vector", "scalar"}},
    "nisa.scalar_tensor_tensor": {"required": "dst data op0 operand0 op1 operand1",
                                  "optional": {"reverse0": ANY, "reverse1": ANY}},
    "nisa.tensor_scalar_reduce": {"required": "dst data op0 operand0 reduce_op",
                                  "optional": {"reduce_res": ANY, "reverse0": ANY, "reduce_cmd": "0.4",
                                               "reduce_init": "0.4", "reduce_res_negate": "0.6"}},
    "nisa.tensor_reduce": {"required": "dst op data axis", "optional": {"negate": ANY, "keepdims": ANY}},
    "nisa.tensor_copy": {"required": "dst src", "optional": {"engine": ANY}, "engines": {"vector", "scalar", "gpsimd"}},
    "nisa.range_select": {"required": "dst on_true_tile comp_op0 comp_op1 bound0 bound1",
                          "optional": {"reduce_cmd": ANY, "reduce_res": ANY, "reduce_op": ANY, "range_start": ANY,
                                       "on_false_value": ANY}},
    "nisa.reciprocal": {"required": "dst data"},
    "nisa.exponential": {"required": "dst src",
                         "optional": {"max_value": ANY, "reduce_res": ANY, "reduce_cmd": ANY, "reduce_init": ANY},
                         "targets": {"trn3"}},
    "nisa.memset": {"required": "dst value", "optional": {"engine": ANY}, "engines": {"vector", "gpsimd"}},
    "nisa.iota": {"required": "dst pattern", "optional": {"offset": ANY, "channel_multiplier": ANY}},
    "nisa.affine_select": {"required": "dst pattern channel_multiplier on_true_tile on_false_value",
                           "optional": {"cmp_op": ANY, "offset": ANY}},
    "nisa.nc_stream_shuffle": {"required": "dst src shuffle_mask"},
    "nisa.register_alloc": {"optional": {"x": ANY}},
    "nisa.register_load": {"required": "dst src"},
    "nisa.core_barrier": {"required": "data cores", "optional": {"engine": ANY}, "engines": {"gpsimd"}},
    "ncc.collective_permute_implicit": {"required": "srcs_by_channel dsts_by_channel replica_group",
                                        "optional": {"channel_ids": ANY, "priority": "0.4", "name": "0.5"}},
    "ncc.collective_permute_implicit_reduce": {
        "required": "srcs0_by_channel srcs1_by_channel dsts_by_channel replica_group op",
        "optional": {"channel_ids": ANY, "priority": "0.4", "name": "0.5"},
    },
    "ncc.collective_permute_implicit_current_processing_rank_id": {
        "required": "iteration_id replica_group", "optional": {"channel_id": ANY, "name": "0.5"}},
    "ncc.ReplicaGroup": {"positional": 1},
    "nl.ndarray": {"positional": 1, "required": "dtype", "optional": {"buffer": ANY, "name": ANY, "address": ANY}},
    "nl.program_id": {"positional": 1},
}
# Matmuls of trn3 may fill the whole PSUM: 4096 float32 of a partition.
TRN3_COLUMNS = {"nisa.nc_matmul": {"dst": 4096, "stationary": 128, "moving": 4096}}
PARTITIONS = 128


def _choices(node, prefix):
    """Names behind the prefix, as in (nisa.engine.scalar, nisa.engine.vector)[engine]."""
    return [ast.unparse(part)[len(prefix):] for part in ast.walk(node)
            if isinstance(part, ast.Attribute) and ast.unparse(part).startswith(prefix)]


def _extent(part):
    """Elements of a slice with constant bounds; None if it has others."""
    if not isinstance(part, ast.Slice) or not isinstance(part.lower, ast.Constant) or not isinstance(part.upper, ast.Constant):
        return None
    return part.upper.value - part.lower.value


def problems_of_call(call, version, target):
    """What the version and the chip refuse of one call of nki, as texts."""
    name = ast.unparse(call.func)
    signature = SIGNATURES.get(name)
    if signature is None:
        return [f"{name} is unknown"]
    found = []
    if target not in signature.get("targets", {target}):
        found.append(f"{name} is not on {target}")
    if len(call.args) != signature.get("positional", 0):
        found.append(f"{name} has {len(call.args)} positional arguments")
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    required, optional = set(signature.get("required", "").split()), signature.get("optional", {})
    found += [f"{name} lacks {keyword}" for keyword in sorted(required - set(keywords))]
    columns = TRN3_COLUMNS.get(name) if target == "trn3" else None
    columns = columns or signature.get("columns", {})
    for keyword, value in keywords.items():
        if keyword not in required and keyword not in optional:
            found.append(f"{name} has no {keyword}")
        elif keyword not in required and VERSIONS.index(optional[keyword]) > VERSIONS.index(version):
            found.append(f"{name} has no {keyword} in {version}")
        if keyword == "engine":
            found += [f"{name} on {engine}" for engine in _choices(value, "nisa.engine.")
                      if engine not in signature.get("engines", set())]
        if keyword == "reduce_cmd":
            found += [f"reduce_cmd {command}" for command in _choices(value, "nisa.reduce_cmd.") if command not in COMMANDS]
        if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Tuple):
            rows, elements = (_extent(part) for part in value.slice.elts)
            if rows is not None and rows > PARTITIONS:
                found.append(f"{name} has {rows} partitions in {keyword}")
            if elements is not None and elements > columns.get(keyword, WIDE):
                found.append(f"{name} has {elements} elements in {keyword}")
    return found


def problems(text, version, target):
    """What the version and the chip refuse of the calls in a kernel's text; and how many calls there are."""
    found, calls = [], 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            if node.func.value.id in ("nisa", "ncc", "nl"):
                calls += 1
                found += problems_of_call(node, version, target)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nl":
            if node.attr not in LANGUAGE:
                found.append(f"nl.{node.attr} is unknown")
    return found, calls
