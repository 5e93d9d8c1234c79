// GPU memory over tcpx: that fragments are copied by the GPU from where they arrived, and from staging memory where
// they can't be. GPUs are made of host memory.
#include <gtest/gtest.h>

#include "cuda_fixture.h"

namespace towline::conformance {
namespace {

class TcpxGpuTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kPage = 4096;
  static constexpr uint64_t kPages = 1024;

  static AgentOptions over(const std::string& tcpx) {
    return {.listen = "127.0.0.1:0",
            .backends = "tcpx,cuda",
            .config = "plugins = [\"" TOWLINE_CUDA_FAKE "\", \"" TOWLINE_TCPX_PLUGIN "\"]\n[tcpx]\n" + tcpx,
            .default_timeout = 20s};
  }
  // Pages in reverse order, both ways; what the right agent says of itself then.
  std::string move(const std::string& tcpx) {
    const Agent left("left", over(tcpx));
    const Agent right("right", over(tcpx));
    const Buffer mine(kPage * kPages, false);
    const Buffer theirs(kPage * kPages, false);
    const auto view = [](const Buffer& memory) {
      return MemoryView{.address = memory.data(), .bytes = memory.size(), .kind = Kind::kVram};
    };
    const auto pages = [](const Buffer& memory) {
      return Blocks::at(memory.data(), kPage, Kind::kVram).repeat(kPages, kPage);
    };
    const Region my_region = left.register_memory(view(mine), {.access = Access::kAll});
    const Region their_region = right.register_memory(view(theirs), {.access = Access::kAll});
    const Peer peer = left.add_peer(right.metadata());
    std::vector<uint32_t> forward(kPages);
    for (uint32_t i = 0; i < kPages; ++i) forward[i] = i;
    const std::vector<uint32_t> backward(forward.rbegin(), forward.rend());
    for (int round = 0; round < 4; ++round) {  // the first is begun before the payload flow is up
      for (const Op op : {Op::write, Op::read}) {
        const Buffer& source = op == Op::write ? mine : theirs;
        const Buffer& target = op == Op::write ? theirs : mine;
        stamp(source.data(), source.size(), static_cast<uint64_t>(round) * 2 + (op == Op::read ? 1 : 0));
        std::memset(target.data(), 0, target.size());
        const Transfer transfer = left.transfer(op, left.block_list(pages(mine)), forward,
                                                peer.block_list(pages(theirs)), backward);
        const Status posted = transfer.post();
        EXPECT_EQ(posted == Status::kInProgress ? transfer.wait(20s) : posted, Status::kOk) << last_error();
        for (std::size_t i = 0; i < kPages; ++i)
          EXPECT_EQ(std::memcmp(mine.data() + i * kPage, theirs.data() + (kPages - 1 - i) * kPage, kPage), 0);
        EXPECT_NE(transfer.route().find("payload by"), std::string::npos) << transfer.route();
      }
    }
    return right.info();
  }
  static uint64_t number_after(const std::string& text, const std::string& key) {
    const std::size_t at = text.find("\"" + key + "\":");
    EXPECT_NE(at, std::string::npos) << key << " is not in " << text;
    return at == std::string::npos
               ? 0
               : std::stoull(text.substr(text.find_first_of("0123456789", at + key.size())));
  }
};

TEST_F(TcpxGpuTest, AGpuCopiesFragmentsFromWhereTheyArrived) {
  const std::string info = move("source = \"emulated\"\n");
  EXPECT_GT(number_after(info, "kept_bytes"), kPage * kPages);
  EXPECT_EQ(number_after(info, "held"), 0u);
}

TEST_F(TcpxGpuTest, ATinyPoolIsCopiedOutAndEveryByteArrives) {
  const std::string info = move("source = \"emulated\"\npool_bytes = \"32KiB\"\n");
  EXPECT_GT(number_after(info, "copied_bytes"), 0u);
  EXPECT_EQ(number_after(info, "held"), 0u);
}

TEST_F(TcpxGpuTest, APoolThatNoGpuReachesIsCopiedOut) {
  const std::string info = move("source = \"mapped\"\n");
  EXPECT_EQ(number_after(info, "kept_bytes"), 0u);
  EXPECT_GT(number_after(info, "fragments"), 0u);
}

TEST_F(TcpxGpuTest, TheLadderIsShown) {
  const Agent agent("left", over("source = \"mapped\"\n"));
  EXPECT_NE(agent.info().find("\"source\":\"mapped\""), std::string::npos) << agent.info();
}

}  // namespace
}  // namespace towline::conformance
