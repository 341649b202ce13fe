// Types that model the Backend concept, and types that miss a single requirement.

#include "annulus/backend/backend.hpp"

#include <cstddef>

#include "annulus/backend/reference/reference.hpp"
#include "support/catch.hpp"
#include "support/foreign_backend.hpp"

using namespace annulus;

namespace {

struct WithoutSpace : ReferenceBackend {
 private:
  using ReferenceBackend::memory_space;
};
struct WithoutBuffer : ReferenceBackend {
 private:
  using ReferenceBackend::Buffer;
};
struct WithoutAccumulator : ReferenceBackend {
 private:
  template <class T>
  using accumulator = Accumulator<T>;
};
struct WithoutAllocate : ReferenceBackend {
  Buffer allocate(Index) = delete;
};
struct WithoutSupports : ReferenceBackend {
  Support supports(Problem const&) const = delete;
};
#define ANNULUS_WITHOUT(operation)                \
  struct Without_##operation : ReferenceBackend { \
    template <class... X>                         \
    void operation(X const&...) = delete;         \
  };                                              \
  static_assert(!Backend<Without_##operation>)
ANNULUS_WITHOUT(copy);
ANNULUS_WITHOUT(convert);
ANNULUS_WITHOUT(add);
ANNULUS_WITHOUT(clear);
ANNULUS_WITHOUT(reset);
ANNULUS_WITHOUT(fold);
ANNULUS_WITHOUT(merge);
ANNULUS_WITHOUT(normalise);
ANNULUS_WITHOUT(row_delta);
ANNULUS_WITHOUT(add_gradients);
ANNULUS_WITHOUT(sink_gradients);
#undef ANNULUS_WITHOUT
struct WithoutSynchronize : ReferenceBackend {
  void synchronize() = delete;
};

struct SupportsAsBool : ReferenceBackend {
  bool supports(Problem const&) const { return true; }
};
struct SupportsThatChangesTheBackend : ReferenceBackend {
  Support supports(Problem const&) { return Support::yes(); }
};
struct AllocateOfOtherType : ReferenceBackend {
  std::byte* allocate(Index) { return nullptr; }
};
struct NormaliseWithoutSinks : ReferenceBackend {
  template <class State, class Output, class Lse>
  void normalise(State, Output, Lse) {}
};

struct NormaliseWithoutRemainder : ReferenceBackend {
  template <class State, class Sinks, class Output, class Lse>
  void normalise(State, Sinks, Output, Lse) {}
};
struct SinkGradientsWithoutRemainder : ReferenceBackend {
  template <class Lse, class Delta, class Sinks, class Gradients>
  void sink_gradients(Lse, Delta, Sinks, Gradients) {}
};

/// Hides fold() with the form that only adds to the state.
struct WithAddingFold : ReferenceBackend {
  template <class T, class Predicate, class A>
  void fold(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
            RunningState<A, HostMemory> state) {
    ReferenceBackend::fold(step, operands, state);
  }
};
/// Hides add_gradients() with the form that only adds to the gradients.
struct WithAddingGradients : ReferenceBackend {
  template <class Step, class Operands, class Backward, class Gradients>
  void add_gradients(Step const& step, Operands const& operands, Backward const& backward, Gradients const& gradients) {
    ReferenceBackend::add_gradients(step, operands, backward, gradients);
  }
};
/// Has only the forms that open and close sums.
struct WithClosingFormsOnly : ReferenceBackend {
  template <class Step, class Operands, class State, class Results>
  void fold(Step const& step, Operands const& operands, State const& state, Results const& results) {
    ReferenceBackend::fold(step, operands, state, results);
  }
  template <class Step, class Operands, class Backward, class Gradients, class Results>
  void add_gradients(Step const& step, Operands const& operands, Backward const& backward, Gradients const& gradients,
                     Results const& results) {
    ReferenceBackend::add_gradients(step, operands, backward, gradients, results);
  }
};

struct OtherMemory {
  struct Queue {};
};
/// Declares another memory space than that of its kernels.
struct KernelsOfOtherMemory : ReferenceBackend {
  using memory_space = OtherMemory;
};

using Foreign = annulus_test::ForeignBackend<>;

struct WithoutQueue : Foreign {
  annulus_test::ForeignQueue queue() = delete;
};
struct QueueOfOtherType : Foreign {
  annulus_test::ForeignQueue* queue();
};

}  // namespace

static_assert(Backend<Foreign> && !Backend<WithoutQueue> && !Backend<QueueOfOtherType>);
static_assert(Backend<ReferenceBackend> && Backend<DoubleReferenceBackend>);

static_assert(!Backend<WithoutSpace> && !Backend<WithoutBuffer> && !Backend<WithoutAccumulator>);
static_assert(!Backend<WithoutAllocate> && !Backend<WithoutSupports> && !Backend<WithoutSynchronize>);
static_assert(!Backend<SupportsAsBool> && !Backend<SupportsThatChangesTheBackend> && !Backend<AllocateOfOtherType>);
static_assert(!Backend<NormaliseWithoutSinks> && !Backend<KernelsOfOtherMemory>);
static_assert(!Backend<NormaliseWithoutRemainder> && !Backend<SinkGradientsWithoutRemainder>);
static_assert(ClosingBackend<ReferenceBackend> && ClosingBackend<DoubleReferenceBackend>);
static_assert(Backend<WithAddingFold> && !ClosingBackend<WithAddingFold>);
static_assert(Backend<WithAddingGradients> && !ClosingBackend<WithAddingGradients>);
static_assert(Backend<WithClosingFormsOnly> && ClosingBackend<WithClosingFormsOnly>);
static_assert(!Backend<HostOperations> && !Backend<int>);

TEST_CASE("sums of a step are a set", "[backend]") {
  constexpr Sums all = Sums::queries | Sums::keys | Sums::pairs;
  static_assert(has(all, Sums::queries | Sums::pairs) && has(Sums::keys, Sums::none));
  static_assert(!has(Sums::keys, Sums::queries | Sums::keys) && !has(Sums::none, Sums::keys));
  static_assert(without(all, Sums::queries | Sums::pairs) == Sums::keys);
  static_assert(without(Sums::keys, Sums::queries) == Sums::keys);
  SUCCEED();
}

TEST_CASE("Support is yes, or no with a reason", "[backend]") {
  CHECK(static_cast<bool>(Support::yes()));
  CHECK(Support::yes().reason().empty());
  CHECK_FALSE(static_cast<bool>(Support::no("no sinks")));
  CHECK(Support::no("no sinks").reason() == "no sinks");
  CHECK_FALSE(static_cast<bool>(Support::no("")));
}
