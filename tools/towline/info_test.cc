#include "info.h"

#include <gtest/gtest.h>

namespace tool {
namespace {

TEST(Info, SaysWhyABackendIsNotUsable) {
  const auto info = nlohmann::json::parse(R"({"backends": [
      {"name": "shm", "usable": true, "kinds": ["dram"], "traits": ["one_sided"], "description": "shared memory",
       "moves": [{"ops": ["read", "write"], "local": ["dram"], "remote": ["dram", "vram"], "where": "same host"}],
       "worst_fence_ns": 2000000, "fence_reason": "connection closed"},
      {"name": "rdma", "usable": false, "step": "open", "reason": "no device"}],
      "topology": {"online_cpus": 2, "allowed_cpus": 1, "numa_nodes": [{"id": 0, "cpus": [0, 1], "memory_bytes": 1024}]}})");
  const std::string text = render_info(info, Terminal{stdout, false});
  EXPECT_NE(text.find("open: no device"), std::string::npos) << text;
  EXPECT_NE(text.find("dram here, dram, vram there; same host"), std::string::npos) << text;
  EXPECT_NE(text.find("2 ms: connection closed"), std::string::npos) << text;
  EXPECT_NE(text.find("2 online, 1 for this process"), std::string::npos) << text;
}

TEST(Info, LivesWithWhatItDoesNotKnow) {
  EXPECT_FALSE(render_info(nlohmann::json::object(), Terminal{stdout, false}).empty());
}

}  // namespace
}  // namespace tool
