// The C++ face of collectives: what it takes, and what it refuses when it is compiled.
#include "towline/collectives.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "support/ports.h"

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

// A caller of a later version, whose struct has a field more.
template <class Struct>
struct Newer {
  Struct known = {};
  uint64_t more = 0;

  Newer() { known.struct_size = sizeof *this; }
};

TEST(CollectivesOfLaterVersions, AreTakenUnlessTheySetWhatIsNotKnown) {
  auto options = detail::defaults<towline_communicator_options_t>();
  options.rank = 0;
  options.size = 1;
  const Communicator world{options};
  Newer<towline_collective_t> call;
  call.known.op = TOWLINE_COLLECTIVE_BARRIER;
  Newer<towline_collective_options_t> how;
  const auto run = [&] { return towline_collective(world.native(), &call.known, &how.known, nullptr); };
  EXPECT_EQ(run(), TOWLINE_OK) << last_error();
  call.more = 1;
  EXPECT_EQ(run(), TOWLINE_UNSUPPORTED);
  EXPECT_NE(last_error().find("call sets a field at byte"), std::string_view::npos) << last_error();
  call.more = 0;
  how.more = 1;
  EXPECT_EQ(run(), TOWLINE_UNSUPPORTED);
  EXPECT_NE(last_error().find("options sets a field at byte"), std::string_view::npos) << last_error();

  Newer<towline_collective_store_t> store;
  store.known.set = [](void*, const char*, const void*, size_t) { return TOWLINE_OK + 0; };
  store.known.get = [](void*, const char*, uint64_t, void*, size_t, size_t*) {
    return TOWLINE_TIMED_OUT + 0;
  };
  store.more = 1;
  options.store = &store.known;
  towline_communicator_t* none = nullptr;
  EXPECT_EQ(towline_communicator_create(&options, &none), TOWLINE_UNSUPPORTED);
  EXPECT_NE(last_error().find("store sets a field at byte"), std::string_view::npos) << last_error();
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

TEST(CollectivesInC, AnApplicationEndsTheWaitForRanksThatDoNotCome) {
  const std::string folder =
      "file:" + ::testing::TempDir() + "towline-interrupted-" + std::to_string(getpid());
  const std::string nobody = "tcp://127.0.0.1:" + std::to_string(support::free_port());
  for (const std::string& place : {folder, nobody}) {
    int asked = 0;
    auto options = detail::defaults<towline_communicator_options_t>();
    options.rank = 1;
    options.size = 2;
    options.bootstrap = place.c_str();
    options.timeout_ns = 60'000'000'000;
    options.interrupted = [](void* context) -> int32_t { return ++*static_cast<int*>(context) == 2 ? 1 : 0; };
    options.interrupt_context = &asked;
    towline_communicator_t* made = nullptr;
    EXPECT_EQ(towline_communicator_create(&options, &made), TOWLINE_CANCELLED) << towline_last_error();
    EXPECT_NE(std::string(towline_last_error()).find("rank 1 was interrupted"), std::string::npos)
        << towline_last_error();
    EXPECT_EQ(asked, 2);
  }
}

TEST(CollectivesInC, AStoreIsReleasedWhateverBecomesOfTheCommunicator) {
  int released = 0;
  auto store = detail::defaults<towline_collective_store_t>();
  store.context = &released;
  store.set = [](void*, const char*, const void*, size_t) -> int32_t { return TOWLINE_IO; };
  store.get = [](void*, const char*, uint64_t, void*, size_t, size_t*) -> int32_t { return TOWLINE_IO; };
  store.release = [](void* context) { ++*static_cast<int*>(context); };
  auto options = detail::defaults<towline_communicator_options_t>();
  options.rank = 0;
  options.size = 2;
  options.store = &store;
  towline_communicator_t* made = nullptr;
  EXPECT_LT(towline_communicator_create(&options, &made), 0);
  EXPECT_EQ(released, 1) << "the store does not work";
  options.config = "[collectives]\nhots = \"a\"\n";
  EXPECT_EQ(towline_communicator_create(&options, &made), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(released, 2) << "a setting is wrong";
}

// As from a program that was compiled before options had `interrupted`.
TEST(CollectivesInC, ABatchReadsNoMoreOfItsOptionsThanThereIs) {
  auto options = detail::defaults<towline_communicator_options_t>();
  options.rank = 0;
  options.size = 1;
  const Communicator world{options};
  towline_batch_t* batch = nullptr;
  ASSERT_EQ(towline_batch_create(world.native(), &batch), TOWLINE_OK);
  auto how = detail::defaults<towline_collective_options_t>();
  how.struct_size = 4;
  EXPECT_EQ(towline_batch_issue(batch, &how, nullptr), TOWLINE_INVALID_ARGUMENT);
  uint8_t byte = 0;
  auto receive = detail::defaults<towline_collective_t>();
  receive.op = TOWLINE_COLLECTIVE_RECV;
  receive.datatype = TOWLINE_UINT8;
  receive.output = &byte;
  receive.count = 1;
  ASSERT_EQ(towline_batch_add(batch, &receive), TOWLINE_OK);
  how.struct_size = offsetof(towline_collective_options_t, interrupted);
  how.timeout_ns = 120'000'000;  // it asks after 50 ms
  how.interrupted = [](void*) -> int32_t {
    ADD_FAILURE() << "what lies behind the options was called";
    return 1;
  };
  EXPECT_EQ(towline_batch_issue(batch, &how, nullptr), TOWLINE_TIMED_OUT);
  towline_batch_destroy(batch);
}

}  // namespace
}  // namespace towline
