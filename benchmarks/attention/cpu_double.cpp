#include "attention/cpu_program.hpp"

template std::unique_ptr<annulus_bench::AttentionProgram> annulus_bench::cpu_program<double>(AttentionCase const&,
                                                                                             Operands const&);
