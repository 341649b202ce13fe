#pragma once
// NumPy's .npy files: read_npy(path) -> NpyArray, write_npy(path, shape, values), pending_npy.

#include "npy_reader.hpp"
#include "npy_writer.hpp"
