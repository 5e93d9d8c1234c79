// The C++ face of collectives: what it takes, and what it refuses when it is compiled.
#include "towline/collectives.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

namespace towline {
namespace {

struct Half {
  uint16_t bits;
};

template <class In, class Out>
concept AllReduces = requires(const Communicator& world, const In& in, Out out) {
  world.all_reduce(in, out);
};

static_assert(AllReduces<std::vector<float>, std::vector<float>&>);
static_assert(AllReduces<std::span<const double>, std::span<double>>);
static_assert(AllReduces<std::span<double>, std::span<double>>);
static_assert(AllReduces<std::array<int, 3>, std::vector<int>&>);
static_assert(!AllReduces<std::vector<float>, std::vector<double>&>);
static_assert(!AllReduces<std::vector<float>, const std::vector<float>&>, "the output is written to");
static_assert(detail::kHasDatatype<bool> && detail::kHasDatatype<char> &&
              detail::kHasDatatype<unsigned long long>);
static_assert(!detail::kHasDatatype<Half> && !detail::kHasDatatype<long double> &&
                  !detail::kHasDatatype<std::string>,
              "elements of an unknown type were moved as if they had 8 bytes");

TEST(CollectivesInCpp, VectorsSpansAndArraysAreTaken) {
  auto options = detail::defaults<towline_communicator_options_t>();
  options.rank = 0;
  options.size = 1;
  const std::string meeting =
      "file:" + ::testing::TempDir() + "towline-collectives-in-cpp-" + std::to_string(getpid());
  options.bootstrap = meeting.c_str();
  const Communicator world{options};
  const std::vector<float> in = {1, 2, 3};
  std::vector<float> out(3);
  world.all_reduce(in, out);
  EXPECT_EQ(out, in);
  std::array<float, 3> gathered{};
  world.all_gather(std::span(in), gathered);
  EXPECT_EQ(gathered[2], 3);
  world.broadcast(out, 0);
  EXPECT_EQ(out, in);
}

TEST(CollectivesInCpp, SettingsThatAreUnknownAreRefusedWithTheNearest) {
  auto options = detail::defaults<towline_communicator_options_t>();
  options.rank = 0;
  options.size = 1;
  options.config = "[collectives]\nlisten = \"127.0.0.1:0\"\nhots = \"a\"\n";
  std::string refused;
  try {
    const Communicator world{options};
  } catch (const Error& error) {
    refused = error.what();
    EXPECT_EQ(error.code(), Status::kInvalidArgument);
  }
  EXPECT_NE(refused.find("unknown setting collectives.hots; collectives.host is the nearest"),
            std::string::npos)
      << refused;
  options.config = "[tuning.collectives]\nchunk_bytes = \"1MiB\"\n";
  const Communicator world{options};
}

}  // namespace
}  // namespace towline
