#include "transports/tcpx/met.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace towline::tcpx {
namespace {

TEST(NeverMet, ThePageSaysWhatInfoSays) {
  std::ifstream file(TOWLINE_TCPX_PAGE);
  std::stringstream text;
  text << file.rdbuf();
  const std::string heading = "| never met | what |\n|---|---|\n";
  const std::size_t begin = text.str().find(heading);
  ASSERT_NE(begin, std::string::npos) << TOWLINE_TCPX_PAGE;
  std::string rows;
  for (const NeverMet& entry : kNeverMet)
    rows += std::string("| ") + entry.part + " | " + entry.what + " |\n";
  const std::size_t first = begin + heading.size();
  EXPECT_EQ(text.str().substr(first, text.str().find("\n\n", first) + 1 - first), rows);
}

}  // namespace
}  // namespace towline::tcpx
