// The tests, or with --child <name> the other process of some of them.
#include <gtest/gtest.h>

#include <string_view>

#include "support.h"

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view{argv[1]} == "--child") return compat::child_main(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
