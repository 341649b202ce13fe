// A program that uses annulus::nki: a kernel is built, validated and printed.

#include <annulus/nki/kernels/forward_kernel.hpp>
#include <annulus/nki/print/to_python.hpp>
#include <annulus/nki/validate/validate.hpp>
#include <iostream>
#include <string>

#if !defined(ANNULUS_NKI_COMPILED)
#error "the tile programs are not those of the library"
#endif

int main() {
  using namespace annulus;
  nki::KernelSpec const spec{.shape = {.batch = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 32, .value_dim = 32},
                             .local_queries = 128,
                             .local_keys = 128,
                             .softmax_scale = 0.25};
  nki::RingMask const mask = nki::sharded_mask(causal(), Contiguous{}, 1, 128, 128);
  nki::Program const program = nki::ForwardKernel(spec, mask).ring();
  nki::validate(program, nki::hardware_of(spec.target));
  std::string const text = nki::to_python(program);
  std::cout << text.size() << " characters\n";
  return text.find("def ") == std::string::npos ? 1 : 0;
}
