// Catch2 2 only: version 3 brings its own main as Catch2::Catch2WithMain.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
