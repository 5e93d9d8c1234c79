#include "base/os/dynamic_library.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace towline {
namespace {

TEST(DynamicLibraryTest, SymbolsCanBeCalled) {
  const DynamicLibrary library("libm.so.6");
  ASSERT_TRUE(library.loaded());
  EXPECT_EQ(library.symbol<double (*)(double)>("sqrt")(9.0), 3.0);
  EXPECT_EQ(library.find_symbol<void*>("towline_no_such_symbol"), nullptr);
}

TEST(DynamicLibraryTest, ErrorsNameFileSymbolAndReason) {
  try {
    DynamicLibrary("/no/such/library.so");
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kNotFound);
    EXPECT_NE(std::string(error.what()).find("/no/such/library.so"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("No such file"), std::string::npos);
  }
  const DynamicLibrary library("libm.so.6");
  try {
    library.symbol<void*>("towline_no_such_symbol");
    FAIL() << "found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("towline_no_such_symbol"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("libm.so.6"), std::string::npos);
  }
  EXPECT_THROW(DynamicLibrary(""), Error);
}

TEST(DynamicLibraryTest, UnloadedAndMovedFromOnesAnswerWithAnError) {
  DynamicLibrary library("libm.so.6");
  DynamicLibrary moved = std::move(library);
  EXPECT_FALSE(library.loaded());
  EXPECT_THROW(library.symbol<void*>("sqrt"), Error);
  EXPECT_EQ(library.find_symbol<void*>("sqrt"), nullptr);
  moved.unload();
  EXPECT_FALSE(moved.loaded());
}

}  // namespace
}  // namespace towline
