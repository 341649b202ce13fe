// Planted violations: the self-test of lengths.py must report the lines that say so, and no other.
// A line that ends in a number of lines stands for that many.

#define ANNULUS_PLANTED(name) \
  struct name {               \
    [] { return [] {}; };     \
  }

namespace planted {

struct Table {  // { in a comment
  int rows[3]{1, 2, 3};
  char brace = '{', digits = 1'000 > 0 ? '}' : '"';
  std::string text = "} {", raw = R"x(} [] { [] {
  )x";
  enum class Kind { all, none };

  Table() : rows{4, 5, 6}, brace('{') {
    visit(0, [this](int r) { return rows[r]; });
  }
  explicit Table(int n)
      : rows{n}, text{[&] { return [n] { return "lambda of an initializer"; }(); }()} {  // found: lambda in a lambda
    auto [first, second] = std::pair(rows[0], rows[1]);
    for (auto const& [key, value] : pairs()) first += value;
  }
  template <class T = struct Other, class = decltype([](int) {})>
  requires requires(T t) { t.size(); }
  [[nodiscard]] auto operator[](T i) const noexcept(noexcept(i + 1)) -> int& {
    return visit([i, this]() mutable noexcept -> int& { return rows[i]; });
  }
  auto operator()(int i) const {
    // A function of a local class is a function of its own.
    struct Local {
      int of(int j) const {
        return apply([&]<class A>(A a) __attribute__((always_inline)) { return a + j; });
      }
    };
    return apply([&](int a) {
      struct Inner {
        int of(int j) const {
          return apply([&](int b) { return b + j; });
        }
      };
      return Inner{}.of(a) + Local{}.of(i);
    });
  }
};

inline auto nested(int i) {
  auto const outer = [&](auto&& f) {
    std::vector<int> const values{1, 2, 3};
    return f([&] { return values[i]; });  // found: lambda in a lambda
  };
  return outer([](auto g) { return g(); }) + apply([] { return 1; }, [] { return 2; });
}

inline constexpr auto table_of_lambdas = std::array{[](int i) { return i; }, [](int i) { return -i; }};

inline int long_lambda(int i) {
  return apply([&] {  // found: lambda has 21 lines
    ++i;  // 18 lines
    return i;
  });
}

inline int allowed_lambda(int i) {
  return apply([&] {
    ++i;  // 17 lines
    return i;
  });
}

template <class T>  // found: too_long has 61 lines
int too_long(T i) {
  ++i;  // 57 lines
  return i;
}

template <class T>
int allowed(T i) {
  ++i;  // 56 lines
  return i;
}

}  // namespace planted
