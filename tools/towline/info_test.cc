#include "info.h"

#include <gtest/gtest.h>

namespace tool {
namespace {

TEST(Info, SaysWhyABackendIsNotUsable) {
  const auto info = nlohmann::json::parse(R"({"backends": [
      {"name": "shm", "usable": true, "kinds": ["dram"], "traits": ["one_sided"], "description": "shared memory",
       "moves": [{"ops": ["read", "write"], "local": ["dram"], "remote": ["dram", "vram"], "where": "same host"}],
       "worst_fence_ns": 2000000, "fence_reason": "connection closed"},
      {"name": "rdma", "usable": false, "step": "usable", "reason": "not usable here: no device"},
      {"name": "gds", "usable": false, "step": "usable", "reason": "opening it failed: no driver"}],
      "not_asked_for": ["ucx", "libfabric"],
      "topology": {"online_cpus": 2, "allowed_cpus": 1, "numa_nodes": [{"id": 0, "cpus": [0, 1], "memory_bytes": 1024}]},
      "worker_places": [{"why": "node 1: 2 devices", "cpus": [1], "numa_node": 1}]
})");
  const std::string text = render_info(info, Terminal{stdout, false});
  EXPECT_NE(text.find("worker 0    node 1: 2 devices"), std::string::npos) << text;
  EXPECT_EQ(text.find("not usable"), std::string::npos) << "the column says it\n" << text;
  EXPECT_EQ(text.find("usable: "), std::string::npos) << "steps are for programs\n" << text;
  EXPECT_NE(text.find("no device"), std::string::npos) << text;
  EXPECT_NE(text.find("opening it failed: no driver"), std::string::npos) << text;
  EXPECT_NE(text.find("Not asked for: ucx, libfabric (TOWLINE_BACKENDS=ucx "), std::string::npos) << text;
  EXPECT_NE(text.find("dram here, dram, vram there; same host"), std::string::npos) << text;
  EXPECT_NE(text.find("2 ms: connection closed"), std::string::npos) << text;
  EXPECT_NE(text.find("2 online, 1 for this process"), std::string::npos) << text;
}

TEST(Info, DrawsDevicesAndTheRailsThatServeThem) {
  const auto info = nlohmann::json::parse(R"({"fabric": {"choice": "1 active port",
      "gpus": [{"address": "0000:13:00.0", "numa_node": 1, "near": ["verbs:mlx5_0/1"]}],
      "ports": [{"rail": "verbs:mlx5_0/1", "device": "mlx5_0", "address": "0000:14:00.0", "numa_node": 1,
                 "state": "ACTIVE", "rate": "400 Gb/sec", "chosen": true},
                {"rail": "verbs:mlx5_1/1", "device": "mlx5_1", "state": "DOWN", "rate": "", "chosen": false}],
      "numa_nodes": [{"id": 1, "near": ["verbs:mlx5_0/1"]}]}})");
  const std::string text = render_info(info, Terminal{stdout, false});
  EXPECT_NE(text.find("0000:13:00.0"), std::string::npos) << text;
  EXPECT_NE(text.find("nearest rails: verbs:mlx5_0/1"), std::string::npos) << text;
  EXPECT_NE(text.find("ACTIVE, 400 Gb/sec; rail verbs:mlx5_0/1"), std::string::npos) << text;
  EXPECT_NE(text.find("DOWN, ; not used"), std::string::npos) << text;
  EXPECT_NE(text.find("rails of its memory"), std::string::npos) << text;
}

TEST(Info, SaysWhatHasNeverMetHardware) {
  const auto info = nlohmann::json::parse(R"({"backends": [{"name": "tcpx", "usable": true, "details":
      {"source": "copy", "never_met": [{"part": "devmem", "what": "a real NIC"}]}}, {"name": "rdma", "usable": true,
      "details": {"rails": [], "never_met": [{"part": "efa", "what": "a device"}]}}]})");
  const std::string text = render_info(info, Terminal{stdout, false});
  EXPECT_NE(text.find("never met: devmem: a real NIC"), std::string::npos) << text;
  EXPECT_NE(text.find("never met: efa: a device"), std::string::npos) << text;
  EXPECT_NE(text.find(R"({"source":"copy"})"), std::string::npos) << text;
}

TEST(Info, SaysSoOfTheExpertsTokens) {
  const nlohmann::json info = {{"never_met", never_met_beside_backends()}};
  const std::string text = render_info(info, Terminal{stdout, false});
  EXPECT_NE(text.find("never met: experts: a NIC between hosts, and a second machine"), std::string::npos)
      << text;
}

TEST(Info, LivesWithWhatItDoesNotKnow) {
  EXPECT_FALSE(render_info(nlohmann::json::object(), Terminal{stdout, false}).empty());
}

}  // namespace
}  // namespace tool
