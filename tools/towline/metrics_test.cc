#include "metrics.h"

#include <gtest/gtest.h>

namespace tool {
namespace {

const Terminal kPlain{stdout, false};

nlohmann::json host(uint64_t bytes, uint64_t transfers) {
  return nlohmann::json::parse(
      R"([{"agent": "prefill-0", "pid": 42, "incarnation": "00", "series": [{"peer": "decode-1",
      "backend": "shm", "direction": "tx", "bytes": )" +
      std::to_string(bytes) + R"(, "transfers": )" + std::to_string(transfers) +
      R"(, "measured": 3, "latency_p50_ns": 2000, "latency_p99_ns": 9000,
      "errors": {"PEER_LOST": 2}}]}, {"agent": "idle", "pid": 43, "series": []}])");
}

TEST(Counters, TableSaysWhatHasMoved) {
  const std::string text = render_metrics(host(4096, 12), nullptr, 0, kPlain);
  for (const char* part : {"prefill-0", "42", "decode-1", "shm", "tx", "4 KiB", "12", "2.00 us", "9 us",
                           "PEER_LOST 2", "idle"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(Counters, WatchedTableSaysWhatMovesNow) {
  const nlohmann::json before = host(1'000'000'000, 100);
  const std::string text = render_metrics(host(5'000'000'000, 300), &before, 2, kPlain);
  EXPECT_NE(text.find("2.00 GB/s"), std::string::npos) << text;
  EXPECT_NE(text.find(" 100 "), std::string::npos) << text;
}

TEST(Counters, NoAgentsIsSaid) {
  EXPECT_EQ(render_metrics(nlohmann::json::array(), nullptr, 0, kPlain),
            "no agents of this user are running here\n");
}

}  // namespace
}  // namespace tool
