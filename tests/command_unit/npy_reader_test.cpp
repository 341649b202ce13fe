// read_npy on files as NumPy writes them.

#include "command_unit/npy_file.hpp"
#include "support/catch.hpp"

#include <cstdint>
#include <limits>

using namespace annulus_command;
using namespace annulus_test;

TEST_CASE("all versions of the format are read", "[npy]") {
  TemporaryFolder folder;
  for (int version : {1, 2, 3}) {
    auto const file =
        folder.file("a.npy", npy_content(version, dictionary("<f8", "(2, 3)"), bytes_of<double>({1, 2, 3, 4, 5, 6.5})));
    auto const array = read_npy(file);
    CAPTURE(version);
    CHECK(array.shape == std::vector<std::size_t>{2, 3});
    CHECK(array.type == NpyType::float64);
    CHECK_FALSE(array.fortran_order);
    CHECK(array.count() == 6);
    CHECK(array.to<double>() == std::vector<double>{1, 2, 3, 4, 5, 6.5});
  }
}

TEST_CASE("a file as NumPy wrote it, byte for byte", "[npy]") {
  // numpy.save of numpy.array([1.5, -2.0], dtype='<f4')
  std::string const header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
  std::string const padded = header + std::string(118 - header.size() - 1, ' ') + "\n";
  TemporaryFolder folder;
  auto const file = folder.file("a.npy", std::string("\x93NUMPY\x01\x00\x76\x00", 10) + padded +
                                             std::string("\x00\x00\xc0\x3f\x00\x00\x00\xc0", 8));
  CHECK(read_npy(file).to<float>() == std::vector<float>{1.5f, -2.0f});
}

TEST_CASE("Fortran order is converted to C order", "[npy]") {
  TemporaryFolder folder;
  SECTION("two axes") {
    auto const file =
        folder.file("f.npy", npy_content(1, dictionary("<f4", "(2, 3)", true), bytes_of<float>({1, 4, 2, 5, 3, 6})));
    CHECK(read_npy(file).fortran_order);
    CHECK(read_npy(file).to<float>() == std::vector<float>{1, 2, 3, 4, 5, 6});
  }
  SECTION("four axes, each value its own index") {
    std::vector<std::int32_t> data;
    for (std::int32_t d = 0; d < 5; ++d)
      for (std::int32_t c = 0; c < 1; ++c)
        for (std::int32_t b = 0; b < 3; ++b)
          for (std::int32_t a = 0; a < 2; ++a) data.push_back(((a * 3 + b) * 1 + c) * 5 + d);
    auto const file = folder.file("f.npy", npy_content(2, dictionary("<i4", "(2, 3, 1, 5)", true), bytes_of(data)));
    auto const values = read_npy(file).to<std::int64_t>();
    REQUIRE(values.size() == 30);
    for (std::int64_t i = 0; i < 30; ++i) CHECK(values[static_cast<std::size_t>(i)] == i);
  }
  SECTION("no elements, one element") {
    CHECK(read_npy(folder.file("e.npy", npy_content(1, dictionary("<f4", "(0, 3)", true), ""))).to<float>().empty());
    auto const scalar = folder.file("s.npy", npy_content(1, dictionary("<f4", "()", true), bytes_of<float>({7})));
    CHECK(read_npy(scalar).to<float>() == std::vector<float>{7});
  }
}

TEST_CASE("shapes: scalar, one axis, empty axes, many axes", "[npy]") {
  TemporaryFolder folder;
  auto const shape_of = [&](std::string const& shape, std::size_t count) {
    return read_npy(folder.file("s.npy", npy_content(1, dictionary("<f4", shape), std::string(4 * count, '\0')))).shape;
  };
  using Shape = std::vector<std::size_t>;
  CHECK(shape_of("()", 1).empty());
  CHECK(shape_of("( )", 1).empty());
  CHECK(shape_of("(3,)", 3) == Shape{3});
  CHECK(shape_of("(3, 0, 2)", 0) == Shape{3, 0, 2});
  CHECK(shape_of("(2,2,1,1,1,1,1,1,1,1,3)", 12) == Shape{2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 3});
  CHECK(shape_of("(2L, 3L)", 6) == Shape{2, 3});
}

TEST_CASE("header text may differ from NumPy's in order, quotes and spaces", "[npy]") {
  TemporaryFolder folder;
  for (std::string const text : {"{'shape': (1,), 'descr': '<f4', 'fortran_order': False}",
                                 " { \"descr\" : \"<f4\" , \"shape\":(1,),\t\"fortran_order\"  : True } \n",
                                 "{'descr':'f4','fortran_order':False,'shape':(1,),}\n"}) {
    CAPTURE(text);
    CHECK(read_npy(folder.file("h.npy", npy_content(1, text, bytes_of<float>({2.5f})))).to<float>() ==
          std::vector<float>{2.5f});
  }
}

TEST_CASE("every accepted element type, in both byte orders", "[npy]") {
  TemporaryFolder folder;
  auto const check = [&]<class T>(std::string const& name, NpyType type, std::vector<T> const& values,
                                          std::vector<double> const& expected) {
    for (auto const order : {std::endian::little, std::endian::big}) {
      std::string const descr = (order == std::endian::little ? "<" : ">") + name;
      auto const file = folder.file(
          "t.npy",
          npy_content(1, dictionary(descr, "(" + std::to_string(values.size()) + ",)"), bytes_of(values, order)));
      CAPTURE(descr);
      NpyArray const array = read_npy(file);
      CHECK(array.type == type);
      CHECK(array.to<double>() == expected);
      if (!is_floating(type)) {
        CHECK(array.to<std::int64_t>() == std::vector<std::int64_t>(expected.begin(), expected.end()));
      }
    }
  };
  check("f2", NpyType::float16, std::vector<std::uint16_t>{0x3c00, 0xc500, 0x3555}, {1, -5, 0.333251953125});
  check("f4", NpyType::float32, std::vector<float>{1, -0.1f}, {1, static_cast<double>(-0.1f)});
  check("f8", NpyType::float64, std::vector<double>{1, -0.1}, {1, -0.1});
  check("i1", NpyType::int8, std::vector<std::int8_t>{-128, 127}, {-128, 127});
  check("u1", NpyType::uint8, std::vector<std::uint8_t>{0, 255}, {0, 255});
  check("i2", NpyType::int16, std::vector<std::int16_t>{-32768, 258}, {-32768, 258});
  check("u2", NpyType::uint16, std::vector<std::uint16_t>{65535, 258}, {65535, 258});
  check("i4", NpyType::int32, std::vector<std::int32_t>{-2147483647, 16909060}, {-2147483647, 16909060});
  check("u4", NpyType::uint32, std::vector<std::uint32_t>{4294967295u, 1}, {4294967295.0, 1});
  check("i8", NpyType::int64, std::vector<std::int64_t>{-4503599627370497, 1}, {-4503599627370497.0, 1});
  check("u8", NpyType::uint64, std::vector<std::uint64_t>{4503599627370497, 1}, {4503599627370497.0, 1});
}

TEST_CASE("one-byte types carry NumPy's '|'", "[npy]") {
  TemporaryFolder folder;
  auto const file = folder.file("b.npy", npy_content(1, dictionary("|b1", "(4,)"), std::string("\0\1\1\0", 4)));
  CHECK(read_npy(file).type == NpyType::boolean);
  CHECK(read_npy(file).to_mask() == std::vector<char>{0, 1, 1, 0});
  CHECK(read_npy(file).to<std::int64_t>() == std::vector<std::int64_t>{0, 1, 1, 0});
  // A byte other than 0 and 1, which NumPy does not write, counts as true, as in NumPy.
  CHECK(read_npy(folder.file("b.npy", npy_content(1, dictionary("|b1", "(1,)"), "\x7f"))).to_mask() ==
        std::vector<char>{1});
  CHECK(read_npy(folder.file("i.npy", npy_content(1, dictionary("|i1", "(1,)"), "\xff"))).to<float>() ==
        std::vector<float>{-1});
}

TEST_CASE("bfloat16 is read from two opaque bytes, or from u2 on request", "[npy]") {
  TemporaryFolder folder;
  auto const bits = bytes_of<std::uint16_t>({0x3f80, 0xc0a0, 0x3eab});
  std::vector<double> const expected{1, -5, 0.333984375};
  for (std::string const descr : {"<V2", "|V2", "V2"}) {
    CAPTURE(descr);
    auto const array = read_npy(folder.file("v.npy", npy_content(1, dictionary(descr, "(3,)"), bits)));
    CHECK(array.type == NpyType::bfloat16);
    CHECK(array.to<double>() == expected);
    CHECK(array.to<Eigen::bfloat16>()[2] == Eigen::bfloat16(0.333984375f));
  }
  auto const file = folder.file("u.npy", npy_content(1, dictionary("<u2", "(3,)"), bits));
  CHECK(read_npy(file, {.uint16_is_bfloat16 = true}).to<double>() == expected);
  CHECK(read_npy(file).to<double>() == std::vector<double>{0x3f80, 0xc0a0, 0x3eab});
}

TEST_CASE("elements convert to each of the library's types", "[npy]") {
  TemporaryFolder folder;
  auto const array =
      read_npy(folder.file("c.npy", npy_content(1, dictionary("<f8", "(2,)"), bytes_of<double>({1.0 / 3, -2}))));
  CHECK(array.to<float>() == std::vector<float>{1.0f / 3, -2});
  CHECK(array.to<Eigen::half>()[0] == Eigen::half(1.0f / 3));
  CHECK(array.to<Eigen::bfloat16>()[0] == Eigen::bfloat16(1.0f / 3));
  auto const infinite = read_npy(folder.file(
      "n.npy", npy_content(1, dictionary("<f4", "(1,)"), bytes_of<float>({std::numeric_limits<float>::infinity()}))));
  CHECK(infinite.to<double>()[0] == std::numeric_limits<double>::infinity());
}

TEST_CASE("integers and masks are not converted from other types", "[npy]") {
  TemporaryFolder folder;
  auto const error_of = [&](std::string const& descr, std::string const& data, bool mask) {
    auto const array = read_npy(folder.file("w.npy", npy_content(1, dictionary(descr, "(1,)"), data)));
    return input_error_of([&] { mask ? (void)array.to_mask() : (void)array.to<std::int64_t>(); });
  };
  CHECK(is_clear(error_of("<f4", bytes_of<float>({1}), false), "w.npy"));
  CHECK(is_clear(error_of("<V2", std::string(2, '\0'), false), "w.npy"));
  CHECK(is_clear(error_of("<u8", bytes_of<std::uint64_t>({std::uint64_t{1} << 63}), false), "w.npy"));
  CHECK(error_of("<u8", bytes_of<std::uint64_t>({(std::uint64_t{1} << 63) - 1}), false).empty());
  auto const message = error_of("<i4", bytes_of<std::int32_t>({-7}), true);
  CHECK(contains(message, "w.npy: holds -7; accepted for a mask: b1"));
  CHECK(contains(error_of("<f8", bytes_of<double>({1}), true), "w.npy: holds f8; accepted for a mask: b1"));
  CHECK(error_of("<i4", bytes_of<std::int32_t>({1}), true).empty());
}
