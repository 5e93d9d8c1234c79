#include "base/os/topology.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace towline {
namespace {

class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "towline_topology_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }

  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = path_ / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

using Cpus = std::vector<uint32_t>;

TEST(TopologyTest, ReadsTwoNodesAndHugePages) {
  FakeRoot root;
  root.write("sys/devices/system/cpu/online", "0-3,8-11\n");
  root.write("sys/devices/system/node/node0/cpulist", "0-3\n");
  root.write("sys/devices/system/node/node0/meminfo",
             "Node 0 MemTotal:       1024 kB\nNode 0 MemFree: 5 kB\n");
  root.write("sys/devices/system/node/node0/distance", "10 21\n");
  root.write("sys/devices/system/node/node10/cpulist", "8-11\n");
  root.write("sys/devices/system/node/node10/distance", "21 ten\n");
  root.write("sys/devices/system/node/possible", "0-63\n");
  root.write("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "4\n");
  root.write("sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "3\n");
  root.write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n");

  const HostTopology topology = read_host_topology(root.path());
  EXPECT_EQ(topology.online_cpus, (Cpus{0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_FALSE(topology.allowed_cpus.empty());
  ASSERT_EQ(topology.nodes.size(), 2u);
  EXPECT_EQ(topology.nodes[0].memory_bytes, 1024u * 1024);
  EXPECT_EQ(topology.nodes[0].distances, (Cpus{10, 21}));
  EXPECT_EQ(topology.nodes[1].id, 10u);
  EXPECT_TRUE(topology.nodes[1].distances.empty());
  EXPECT_EQ(topology.node_of_cpu(9), 10u);
  EXPECT_EQ(topology.node_of_cpu(5), std::nullopt);
  EXPECT_EQ(topology.find_node(7), nullptr);
  ASSERT_EQ(topology.huge_pages.size(), 2u);
  EXPECT_EQ(topology.huge_pages[0].bytes, 2u << 20);
  EXPECT_EQ(topology.huge_pages[1].bytes, 1u << 30);
  EXPECT_EQ(topology.huge_pages[1].free, 3u);
}

TEST(TopologyTest, WithoutNumaInformationEverythingIsNodeZero) {
  FakeRoot root;
  const HostTopology topology = read_host_topology(root.path());
  ASSERT_EQ(topology.nodes.size(), 1u);
  EXPECT_EQ(topology.nodes[0].cpus, topology.allowed_cpus);
  EXPECT_TRUE(topology.huge_pages.empty());
}

TEST(TopologyTest, ThisHostHasProcessors) {
  const HostTopology topology = read_host_topology();
  EXPECT_FALSE(topology.online_cpus.empty());
  ASSERT_FALSE(topology.allowed_cpus.empty());
  EXPECT_TRUE(topology.node_of_cpu(topology.allowed_cpus[0]).has_value());
}

TEST(TopologyTest, CpuListsAreParsedStrictly) {
  EXPECT_EQ(parse_cpu_list("0-2,5"), (Cpus{0, 1, 2, 5}));
  EXPECT_EQ(parse_cpu_list("5,0-1,1"), (Cpus{0, 1, 5}));
  EXPECT_EQ(parse_cpu_list(""), Cpus{});
  for (const char* text :
       {"3-1", "a", "1,", ",1", "1-", "-1", "1--2", "0-99999999", "18446744073709551616"}) {
    EXPECT_FALSE(parse_cpu_list(text)) << text;
  }
}

}  // namespace
}  // namespace towline
