// The command as somebody runs it, in processes of its own.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace tool::replay {
namespace {

struct Ended {
  int code = -1;
  std::string output;  // of both streams
};

Ended towline(const std::string& arguments) {
  Ended ended;
  FILE* const pipe = ::popen((TOWLINE_TOOL " " + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return ended;
  std::array<char, 4096> text;
  while (const size_t count = std::fread(text.data(), 1, text.size(), pipe))
    ended.output.append(text.data(), count);
  const int status = ::pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

// Each connection breaks before the transfer is through.
TEST(ReplayCommandLine, AFailureEndsInASentence) {
  const Ended ended = towline("replay --requests 1 --layers 2 --backend tcp --faults cut_after=1000000");
  EXPECT_EQ(ended.code, 1) << ended.output;
  std::string text = ended.output.substr(0, ended.output.find_last_not_of('\n') + 1);
  const std::string last = text.substr(text.rfind('\n') + 1);
  EXPECT_EQ(last,
            "towline: error: decode rank 0: request 0: a transfer of 1828 blocks by tcp failed at attempt "
            "10: peer lost");
}

}  // namespace
}  // namespace tool::replay
