#pragma once
// NumPy's .npy files: read_npy(path) -> NpyArray, write_npy(path, shape, values), PendingNpy.

#include "npy_reader.hpp"
#include "npy_writer.hpp"
