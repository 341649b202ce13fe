#pragma once
// NKI instructions that attention needs, as plain data. Semantics: the NKI ISA reference of Neuron SDK 2.29 to 2.32.
//
// fields(self, visit) visits every field in the order and with the keyword of the NKI call: visit(keyword, field), or
// visit(keyword, field, Use) for an operand that is not only read. for_each_field and for_each_access unwrap the
// fields.

#include <array>
#include <concepts>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "annulus/nki/program/access.hpp"

namespace annulus::nki {

/// Five compute engines, the DMA queues and the collective cores of one physical core.
enum class Engine {
  tensor,      ///< TensorE: products
  vector,      ///< VectorE: element by element, reductions
  scalar,      ///< ScalarE: functions of one element
  gpsimd,      ///< GpSimdE: patterns of positions
  sync,        ///< queries of the ring, loads of registers
  dma,         ///< DMA queues
  collective,  ///< permutes around the ring
};
/// Number of engines.
inline constexpr int engine_count = 7;
constexpr std::string_view name_of(Engine engine) {
  return name_in({"tensor", "vector", "scalar", "gpsimd", "sync", "dma", "collective"}, engine);
}

/// Binary operators of VectorE and GpSimdE, and of reductions.
enum class Operator {
  add,            ///< a + b
  subtract,       ///< a - b
  multiply,       ///< a * b
  maximum,        ///< the larger one
  minimum,        ///< the smaller one
  equal,          ///< a == b
  greater,        ///< a > b
  greater_equal,  ///< a >= b
  less,           ///< a < b
};
constexpr std::string_view name_of(Operator op) {
  return name_in({"add", "subtract", "multiply", "maximum", "minimum", "equal", "greater", "greater_equal", "less"},
                 op);
}

/// Elementwise functions of Activation.
enum class Function {
  copy,  ///< x
  exp,   ///< e^x
  log,   ///< natural logarithm
  tanh,  ///< hyperbolic tangent
};
constexpr std::string_view name_of(Function function) { return name_in({"copy", "exp", "log", "tanh"}, function); }

/// Action of an instruction on the 128 internal accumulators (one per partition) of its engine.
enum class ReduceCommand {
  idle,          ///< none
  reset,         ///< sets them to the neutral element
  reduce,        ///< reduces onto them
  reset_reduce,  ///< resets, then reduces
};
constexpr std::string_view name_of(ReduceCommand command) {
  return name_in({"idle", "reset", "reduce", "reset_reduce"}, command);
}

/// Use of an operand by an instruction; update reads and writes it.
enum class Use {
  read,    ///< input
  write,   ///< result
  update,  ///< both
};

/// An immediate value, or one element per partition ([P, 1]).
using Scalar = std::variant<float, Access>;

/// The mask of nc_stream_shuffle: for each partition of a quadrant, the one that it takes.
inline constexpr std::array<int, 32> first_of_quadrant{};

/// The lowest float: the fill of masked scores, and the only one that range_select accepts.
inline constexpr float lowest_float = -3.4028235e38f;

/// What every instruction has: an engine, and all of ANNULUS_NKI_CALL.
#define ANNULUS_NKI_INSTRUCTION(Type, only_engine, call, ...) \
  static constexpr Engine engine = Engine::only_engine;       \
  ANNULUS_NKI_CALL(Type, call, __VA_ARGS__)
/// The name of the call, the fields, and comparison, of an instruction that several `engines` may execute.
#define ANNULUS_NKI_CALL(Type, call, ...)         \
  static constexpr std::string_view name = call;  \
  template <class Self, class Visit>              \
  static void fields(Self& self, Visit&& visit) { \
    __VA_ARGS__                                   \
  }                                               \
  bool operator==(Type const&) const = default;
/// A field whose name is its keyword.
#define ANNULUS_IN(field) visit(#field, self.field);
/// The same for a field that is written.
#define ANNULUS_OUT(field) visit(#field, self.field, Use::write);

/// dst[M, N] = or += sum over partitions of stationary[K, M] * moving[K, N].
struct MatMul {
  Access dst, stationary, moving;  ///< operands in memory
  bool accumulate = false;         ///< true: add to dst
  ANNULUS_NKI_INSTRUCTION(MatMul, tensor, "nc_matmul",
                          visit("dst", self.dst, self.accumulate ? Use::update : Use::write);
                          ANNULUS_IN(stationary) ANNULUS_IN(moving) ANNULUS_IN(accumulate))
};

/// dst[f, p] = data[p, f], bit-exact, through PSUM.
struct Transpose {
  Access dst, data;  ///< operands in memory
  ANNULUS_NKI_INSTRUCTION(Transpose, tensor, "nc_transpose", ANNULUS_OUT(dst) ANNULUS_IN(data) ANNULUS_IN(engine))
};

/// Copies between HBM and SBUF in any direction, elements in row-major order of both patterns; casts.
struct DmaCopy {
  Access dst, src;  ///< operands in memory
  ANNULUS_NKI_INSTRUCTION(DmaCopy, dma, "dma_copy", ANNULUS_OUT(dst) ANNULUS_IN(src))
};

/// dst = src with axes (1, 0), (2, 1, 0) or (3, 1, 2, 0); two-byte types.
struct DmaTranspose {
  Access dst, src;  ///< operands in memory
  ANNULUS_NKI_INSTRUCTION(DmaTranspose, dma, "dma_transpose", ANNULUS_OUT(dst) ANNULUS_IN(src))
};

/// dst = op(data * scale + bias); reduce_res = sum over the elements of a partition (before rounding to dst's type).
struct Activation {
  Access dst;                                      ///< result
  Function op = Function::copy;                    ///< applied to each element
  Access data;                                     ///< input
  Scalar bias = 0.0f, scale = 1.0f;                ///< of the input
  std::optional<Operator> reduce_op{};             ///< unset: no reduction
  std::optional<Access> reduce_res{};              ///< result of the reduction
  ReduceCommand reduce_cmd = ReduceCommand::idle;  ///< what becomes of the accumulators
  ANNULUS_NKI_INSTRUCTION(Activation, scalar, "activation",
                          ANNULUS_OUT(dst) ANNULUS_IN(op) ANNULUS_IN(data) ANNULUS_IN(bias) ANNULUS_IN(scale)
                              ANNULUS_IN(reduce_op) ANNULUS_OUT(reduce_res) ANNULUS_IN(reduce_cmd))
};

/// dst = data1 op data2.
struct TensorTensor {
  static constexpr std::initializer_list<Engine> engines{Engine::vector, Engine::gpsimd};  ///< that execute it
  Access dst, data1, data2;                                                                ///< operands in memory
  Operator op = Operator::add;                                                             ///< applied to each pair
  Engine engine = Engine::vector;
  ANNULUS_NKI_CALL(TensorTensor, "tensor_tensor",
                   ANNULUS_OUT(dst) ANNULUS_IN(data1) ANNULUS_IN(data2) ANNULUS_IN(op) ANNULUS_IN(engine))
};

/// dst = (data op0 operand0) op1 operand1. GpSimdE evaluates rsqrt alone (tensor_scalar in the pages of 2.29 to 2.32),
/// which is no Operator here.
struct TensorScalar {
  static constexpr std::initializer_list<Engine> engines{Engine::scalar, Engine::vector};  ///< that execute it
  Access dst, data;                                                                        ///< operands in memory
  Operator op0 = Operator::multiply;                                                       ///< first operator
  Scalar operand0 = 1.0f;                                                                  ///< its right operand
  std::optional<Operator> op1{};  ///< second operator; unset: none
  Scalar operand1 = 0.0f;         ///< its right operand
  Engine engine = Engine::vector;
  ANNULUS_NKI_CALL(TensorScalar, "tensor_scalar",
                   ANNULUS_OUT(dst) ANNULUS_IN(data) ANNULUS_IN(op0) ANNULUS_IN(operand0) ANNULUS_IN(op1)
                       ANNULUS_IN(operand1) ANNULUS_IN(engine))
};

/// dst = (data op0 operand0) op1 operand1, operand1 a tensor.
struct ScalarTensorTensor {
  Access dst, data;                   ///< operands in memory
  Operator op0 = Operator::multiply;  ///< first operator
  Scalar operand0 = 1.0f;             ///< its right operand
  Operator op1 = Operator::add;       ///< second operator
  Access operand1;                    ///< its right operand
  ANNULUS_NKI_INSTRUCTION(ScalarTensorTensor, vector, "scalar_tensor_tensor",
                          ANNULUS_OUT(dst) ANNULUS_IN(data) ANNULUS_IN(op0) ANNULUS_IN(operand0) ANNULUS_IN(op1)
                              ANNULUS_IN(operand1))
};

/// dst = data reduced over its last axis, counted from the partition axis 0; negate: times -1.
struct TensorReduce {
  Access dst;                       ///< result
  Operator op = Operator::maximum;  ///< of the reduction
  Access data;                      ///< input
  int axis = 1;                     ///< the last one
  bool negate = false;              ///< true: times -1
  ANNULUS_NKI_INSTRUCTION(TensorReduce, vector, "tensor_reduce",
                          ANNULUS_OUT(dst) ANNULUS_IN(op) ANNULUS_IN(data) ANNULUS_IN(axis) ANNULUS_IN(negate))
};

/// dst = src, cast.
struct TensorCopy {
  /// Those that execute it.
  static constexpr std::initializer_list<Engine> engines{Engine::scalar, Engine::vector, Engine::gpsimd};
  Access dst, src;  ///< operands in memory
  Engine engine = Engine::vector;
  ANNULUS_NKI_CALL(TensorCopy, "tensor_copy", ANNULUS_OUT(dst) ANNULUS_IN(src) ANNULUS_IN(engine))
};

/// With i = range_start + number of the element in its partition: dst = on_true_tile where bound0 <= i < bound1, else
/// the lowest float; reduce_res = maximum of dst, chained by reduce_cmd.
struct RangeSelect {
  static constexpr Operator comp_op0 = Operator::greater_equal, comp_op1 = Operator::less;  ///< of i with the bounds
  static constexpr Operator reduce_op = Operator::maximum;                                  ///< of the reduction
  static constexpr float on_false_value = lowest_float;    ///< the only one that NKI accepts
  Access dst, on_true_tile;                                ///< operands in memory
  Access bound0, bound1;                                   ///< one value per partition
  ReduceCommand reduce_cmd = ReduceCommand::reset_reduce;  ///< what becomes of the accumulators
  std::optional<Access> reduce_res{};                      ///< result of the reduction
  Affine range_start{};                                    ///< number of the first element
  ANNULUS_NKI_INSTRUCTION(RangeSelect, vector, "range_select",
                          ANNULUS_OUT(dst) ANNULUS_IN(on_true_tile) ANNULUS_IN(comp_op0) ANNULUS_IN(comp_op1)
                              ANNULUS_IN(bound0) ANNULUS_IN(bound1) ANNULUS_IN(reduce_cmd) ANNULUS_OUT(reduce_res)
                                  ANNULUS_IN(reduce_op) ANNULUS_IN(range_start) ANNULUS_IN(on_false_value))
};

/// dst = 1 / data.
struct Reciprocal {
  Access dst, data;  ///< operands in memory
  ANNULUS_NKI_INSTRUCTION(Reciprocal, vector, "reciprocal", ANNULUS_OUT(dst) ANNULUS_IN(data))
};

/// dst = value.
struct Memset {
  static constexpr std::initializer_list<Engine> engines{Engine::vector, Engine::gpsimd};  ///< that execute it
  Access dst;                                                                              ///< result
  float value = 0.0f;                                                                      ///< of every element
  Engine engine = Engine::vector;
  ANNULUS_NKI_CALL(Memset, "memset", ANNULUS_OUT(dst) ANNULUS_IN(value) ANNULUS_IN(engine))
};

/// dst[p, i..] = offset + p * channel_multiplier + sum of step * i, in int32, then cast; pattern: {step, count} each.
struct Iota {
  Access dst;                    ///< result
  std::vector<Axis> pattern{};   ///< axes of an element's number
  Affine offset{};               ///< of the first element
  Index channel_multiplier = 0;  ///< step from one partition to the next
  ANNULUS_NKI_INSTRUCTION(Iota, gpsimd, "iota",
                          ANNULUS_OUT(dst) ANNULUS_IN(pattern) ANNULUS_IN(offset) ANNULUS_IN(channel_multiplier))
};

/// Every partition of dst = the first partition of src. dst lies in one quadrant of 32 partitions.
struct StreamShuffle {
  Access dst, src;  ///< operands in memory
  ANNULUS_NKI_INSTRUCTION(StreamShuffle, vector, "nc_stream_shuffle",
                          ANNULUS_OUT(dst) ANNULUS_IN(src) visit("shuffle_mask", first_of_quadrant);)
};

/// Both cores of a pair wait for each other; then each sees what the other wrote to `data` (a whole tensor).
struct CoreBarrier {
  Access data;  ///< a whole tensor
  ANNULUS_NKI_INSTRUCTION(CoreBarrier, gpsimd, "core_barrier", visit("data", self.data, Use::update);)
};

/// Channel of all collectives of a program. Each channel has an order of ranks of its own.
inline constexpr int ring_channel = 0;

/// Sends a whole tensor to the ring's successor and fills dst from the predecessor.
struct CollectivePermute {
  Access src, dst;  ///< whole tensors
  ANNULUS_NKI_INSTRUCTION(CollectivePermute, collective, "collective_permute_implicit",
                          visit("srcs_by_channel", self.src);
                          visit("dsts_by_channel", self.dst, Use::write); visit("channel_ids", ring_channel);)
};

/// Sends src0 op src1 to the ring's successor and fills dst from the predecessor.
struct CollectivePermuteReduce {
  Access src0, src1, dst;       ///< whole tensors
  Operator op = Operator::add;  ///< applied to each pair
  ANNULUS_NKI_INSTRUCTION(CollectivePermuteReduce, collective, "collective_permute_implicit_reduce",
                          visit("srcs0_by_channel", self.src0);
                          visit("srcs1_by_channel", self.src1); visit("dsts_by_channel", self.dst, Use::write);
                          ANNULUS_IN(op) visit("channel_ids", ring_channel);)
};

/// Register = id of the rank whose data is here after iteration_id hops; 0 hops: this rank.
struct ProcessingRank {
  int register_number = 0;  ///< register that receives the id
  Affine iteration_id{};    ///< number of hops
  ANNULUS_NKI_INSTRUCTION(ProcessingRank, sync, "collective_permute_implicit_current_processing_rank_id",
                          ANNULUS_IN(iteration_id) visit("channel_id", ring_channel);)
};

/// Register = the one element of src, a value that the program declares for the register.
struct RegisterLoad {
  int register_number = 0;  ///< register that receives the value
  Access src;               ///< int32 in SBUF
  ANNULUS_NKI_INSTRUCTION(RegisterLoad, sync, "register_load", ANNULUS_IN(src))
};

#undef ANNULUS_NKI_INSTRUCTION
#undef ANNULUS_NKI_CALL
#undef ANNULUS_IN
#undef ANNULUS_OUT

/// Any instruction.
using Instruction =
    std::variant<MatMul, Transpose, DmaCopy, DmaTranspose, Activation, TensorTensor, TensorScalar, ScalarTensorTensor,
                 TensorReduce, TensorCopy, RangeSelect, Reciprocal, Memset, Iota, StreamShuffle, CoreBarrier,
                 CollectivePermute, CollectivePermuteReduce, ProcessingRank, RegisterLoad>;

inline std::string_view name_of(Instruction const& instruction) {
  return std::visit([]<class I>(I const&) { return I::name; }, instruction);
}

/// The engine that executes an instruction.
inline Engine engine_of(Instruction const& instruction) {
  return std::visit([](auto const& typed) { return typed.engine; }, instruction);
}

/// Number of the register that an instruction sets; null: none.
inline int const* register_of(Instruction const& instruction) {
  return std::visit(
      [](auto const& typed) -> int const* {
        if constexpr (requires { typed.register_number; }) return &typed.register_number;
        return nullptr;
      },
      instruction);
}

namespace instruction_detail {

/// Calls visit(keyword, value, use) for a field if it has a value, with optionals and Scalars unwrapped.
template <class Field, class Visit>
void visit_field(std::string_view keyword, Field& field, Use use, Visit& visit) {
  if constexpr (requires { field.has_value(); }) {
    if (field) visit(keyword, *field, use);
  } else if constexpr (requires { field.valueless_by_exception(); }) {
    std::visit([&](auto& value) { visit(keyword, value, use); }, field);
  } else {
    visit(keyword, field, use);
  }
}

}  // namespace instruction_detail

/// Calls visit(keyword, value, Use) for each field that has a value, in order, with optionals and Scalars unwrapped.
/// The Use is that of an Access.
template <class I, class Visit>
void for_each_field(I& instruction, Visit&& visit) {
  if constexpr (std::same_as<std::remove_const_t<I>, Instruction>)
    std::visit([&](auto& typed) { for_each_field(typed, visit); }, instruction);
  else
    I::fields(instruction, [&](std::string_view keyword, auto& field, Use use = Use::read) {
      instruction_detail::visit_field(keyword, field, use, visit);
    });
}

/// Calls visit(keyword, Use, Access) for each operand in memory, including those inside Scalars and optionals.
template <class I, class Visit>
void for_each_access(I& instruction, Visit&& visit) {
  for_each_field(instruction, [&]<class Value>(std::string_view keyword, Value& value, Use use) {
    if constexpr (std::same_as<std::remove_const_t<Value>, Access>) visit(keyword, use, value);
  });
}

}  // namespace annulus::nki
