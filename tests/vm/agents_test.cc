// Two agents on the guest's two hosts: every byte of many requests, through memory that the NIC fills.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "guest.h"
#include "support/temporary_folder.h"
#include "towline/towline.hpp"

namespace towline::guest {
namespace {

using namespace std::chrono_literals;

class AgentsTest : public ::testing::Test {
 protected:
  [[nodiscard]] AgentOptions over(int host, const std::string& source, Kind kind = Kind::kDram) const {
    const bool gpu = kind == Kind::kVram;
    return {.listen = std::string(kAddress[host]) + ":0",
            .backends = gpu ? "tcpx,cuda" : "tcpx",
            .config = std::string("plugins = [\"" TOWLINE_TCPX_PLUGIN "\"") +
                      (gpu ? ", \"" TOWLINE_CUDA_FAKE "\"" : "") + "]\n[tuning.tcpx]\nsource = \"" + source +
                      "\"\ninterface = \"" + kNic[host] + "\"\nqueues = \"2,3\"\n" +
                      // Room for all that one lane has under way, in fragments of a packet's uneven pieces.
                      (gpu ? "sockets = 2\npool_bytes = \"64MiB\"\n" : "pool_bytes = \"32MiB\"\n") +
                      "state_dir = \"" + folder_.path() + "\"\n",
            .default_timeout = 60s};
  }
  static uint64_t number_after(const std::string& text, const std::string& key) {
    const std::size_t at = text.find("\"" + key + "\":");
    EXPECT_NE(at, std::string::npos) << key << " is not in " << text;
    return at == std::string::npos
               ? 0
               : std::stoull(text.substr(text.find_first_of("0123456789", at + key.size())));
  }
  void move_a_gigabyte(const std::string& source, Kind kind = Kind::kDram);

  support::TemporaryFolder folder_{"/tmp"};
};

void AgentsTest::move_a_gigabyte(const std::string& source, Kind kind) {
  constexpr uint64_t kRequest = 64u << 10;
  constexpr uint64_t kRequests = 512;  // a round
  constexpr uint64_t kRounds = (1u << 30) / (kRequest * kRequests);
  const Memory mine(kRequest * kRequests);
  const Memory theirs(kRequest * kRequests);
  const auto all_of = [kind](const Memory& memory) {
    return MemoryView{.address = memory.data(), .bytes = memory.size(), .kind = kind};
  };
  enter(0);
  const Agent receiver("receiver", over(0, source, kind));
  const Region their_region = receiver.register_memory(all_of(theirs), {.access = Access::kAll});
  enter(1);
  const Agent sender("sender", over(1, "copy", kind));
  const Region my_region = sender.register_memory(all_of(mine), {.access = Access::kAll});
  const Peer peer = sender.add_peer(receiver.metadata());
  const Transfer transfer =
      sender.transfer(sender.block_list(Blocks::at(mine.data(), kRequest, kind).repeat(kRequests, kRequest)),
                      peer.block_list(Blocks::at(theirs.data(), kRequest, kind).repeat(kRequests, kRequest)));
  uint64_t wrong = 0;
  for (uint64_t round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < mine.size(); i += 8) {
      const uint64_t word = (i + round) * 0x9e3779b97f4a7c15u;
      std::memcpy(mine.data() + i, &word, sizeof word);
    }
    const Status posted = transfer.post();
    ASSERT_EQ(posted == Status::kInProgress ? transfer.wait(60s) : posted, Status::kOk) << last_error();
    wrong += std::memcmp(mine.data(), theirs.data(), mine.size()) == 0 ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0u);
  const std::string info = receiver.info();
  std::printf("%s\n%s\n", transfer.route().c_str(), info.substr(info.find("\"source\""), 300).c_str());
  EXPECT_NE(info.find("\"source\":\"" + source + "\""), std::string::npos) << info;
  EXPECT_EQ(number_after(info, "held"), 0u);
  // Only bytes that came before the rule or the payload flow was there.
  EXPECT_LT(number_after(info, "linear_bytes"), 1u << 20);
  EXPECT_GT(number_after(info, "fragment_bytes"), uint64_t{1000} << 20);
  EXPECT_EQ(number_after(info, "copied_bytes"), 0u);
  if (kind == Kind::kVram) {
    const std::string sent = sender.info();
    EXPECT_GT(number_after(sent, "bound_bytes"), uint64_t{1000} << 20);
    EXPECT_EQ(number_after(sent, "bound_copied"), 0u);
    EXPECT_EQ(number_after(sent, "sent_bytes"), 0u);
  }
  enter(0);  // where the NIC is that the receiver gives back
}

TEST_F(AgentsTest, AGigabyteIn64KiBRequestsOverDevmem) { move_a_gigabyte("devmem"); }
// From memory of a GPU to memory of another one, by the NICs alone. GPUs are made of host memory.
TEST_F(AgentsTest, AGigabyteFromGpuToGpuOverDevmemIsCopiedByNoProcessor) {
  move_a_gigabyte("devmem", Kind::kVram);
}
TEST_F(AgentsTest, AGigabyteIn64KiBRequestsOverZcrx) { move_a_gigabyte("zcrx"); }
TEST_F(AgentsTest, AGigabyteIn64KiBRequestsOverZcrxWithoutANic) { move_a_gigabyte("zcrx-copy"); }

}  // namespace
}  // namespace towline::guest
