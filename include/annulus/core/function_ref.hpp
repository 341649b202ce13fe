#pragma once
// Reference to a function object of any type, so that a function that takes one can be compiled once.

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace annulus::detail {

template <class Signature>
class FunctionRef;

/// Refers to a function object, which must outlive it, and is called like it.
template <class Result, class... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <class Function>
  requires(std::is_object_v<Function> && !std::same_as<std::remove_cv_t<Function>, FunctionRef>)
      FunctionRef(Function& function)
      : object_(const_cast<void*>(static_cast<void const volatile*>(std::addressof(function)))),
        call_([](void* object, Arguments... arguments) -> Result {
          return (*static_cast<Function*>(object))(std::forward<Arguments>(arguments)...);
        }) {}

  Result operator()(Arguments... arguments) const { return call_(object_, std::forward<Arguments>(arguments)...); }

 private:
  void* object_;
  Result (*call_)(void*, Arguments...);
};

}  // namespace annulus::detail
