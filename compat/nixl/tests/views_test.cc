// Views of memory for code on a GPU, and the calls of that code. GPUs are made of host memory, and a block of theirs has one
// thread: this one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include <nixl_device.cuh>
#include <towline/towline.hpp>
#include "support.h"

namespace compat {
namespace {

constexpr size_t kBytes = 64 * 4096;

// An agent with memory that others can map, half of it a GPU's and half the host's.
struct Viewed {
  explicit Viewed(const std::string& agent_name) : name(agent_name), agent(agent_name, nixlAgentConfig{}) {
    EXPECT_EQ(agent.createBackend("UCX", {}, backend), NIXL_SUCCESS) << towline::nixl::last_error();
    for (const nixl_mem_t type : {VRAM_SEG, DRAM_SEG}) {
      nixl_reg_dlist_t list(type);
      list.addDesc(nixlBlobDesc(address(type), kBytes, 0, ""));
      EXPECT_EQ(agent.registerMem(list), NIXL_SUCCESS) << towline::nixl::last_error();
    }
  }
  [[nodiscard]] std::byte* at(nixl_mem_t type) { return (type == VRAM_SEG ? vram : dram).data(); }
  [[nodiscard]] uintptr_t address(nixl_mem_t type) { return reinterpret_cast<uintptr_t>(at(type)); }
  void load(Viewed& other) {
    std::string blob;
    std::string loaded;
    ASSERT_EQ(other.agent.getLocalMD(blob), NIXL_SUCCESS);
    ASSERT_EQ(agent.loadRemoteMD(blob, loaded), NIXL_SUCCESS) << towline::nixl::last_error();
  }
  // Two entries: the first 100 bytes and everything from 4,096 on.
  nixlMemViewH local(nixl_mem_t type) {
    nixl_local_dlist_t list(type);
    list.emplace(address(type), size_t{100}, uint64_t{0});
    list.emplace(address(type) + 4096, kBytes - 4096, uint64_t{0});
    nixlMemViewH view = nullptr;
    EXPECT_EQ(agent.prepMemView(list, view), NIXL_SUCCESS) << towline::nixl::last_error();
    return view;
  }
  // Of `other`: nobody, the whole, the whole again.
  nixlMemViewH remote(Viewed& other, nixl_mem_t type) {
    nixl_remote_dlist_t list(type);
    list.addDesc(nixlRemoteDesc(0, 0, 0, nixl_null_agent));
    for (int i = 0; i < 2; ++i) list.addDesc(nixlRemoteDesc(other.address(type), kBytes, 0, other.name));
    nixlMemViewH view = nullptr;
    EXPECT_EQ(agent.prepMemView(list, view), NIXL_SUCCESS) << towline::nixl::last_error();
    return view;
  }

  std::string name;
  towline::Memory vram{kBytes};
  towline::Memory dram{kBytes};
  nixlAgent agent;
  nixlBackendH* backend = nullptr;
};

// `direct`: memory of one process as it lies, or mapped once more, as between processes.
class Views : public ::testing::TestWithParam<std::tuple<bool, nixl_mem_t, nixl_mem_t>> {
 protected:
  void SetUp() override {
    setenv("TOWLINE_PLUGINS", TOWLINE_CUDA_FAKE, 1);
    setenv("TOWLINE_TUNING_CUDA_DIRECT", std::get<0>(GetParam()) ? "true" : "false", 1);
  }
  void TearDown() override {
    unsetenv("TOWLINE_TUNING_CUDA_DIRECT");
    unsetenv("TOWLINE_PLUGINS");
  }
};

template <nixl_gpu_level_t level>
void put_and_count(Viewed& from, Viewed& to, nixl_mem_t here, nixl_mem_t there) {
  const nixlMemViewH mine = from.local(here);
  const nixlMemViewH theirs = from.remote(to, there);
  ASSERT_NE(mine, nullptr);
  ASSERT_NE(theirs, nullptr);
  for (const auto& [offset, bytes] :
       {std::pair<size_t, size_t>{0, 4096}, {16, 1000}, {4, 60}, {3, 33}, {9, 0}}) {
    std::memset(from.at(here), 0x11, kBytes);
    std::memset(to.at(there), 0x22, kBytes);
    std::memset(from.at(here) + 4096 + offset, 0x33, bytes);
    nixlGpuXferStatusH status{NIXL_IN_PROG};
    ASSERT_EQ(nixlPut<level>({mine, 1, offset}, {theirs, 2, offset + 64}, bytes, 0, 0, &status),
              NIXL_IN_PROG);
    EXPECT_EQ(nixlGpuGetXferStatus<level>(status), NIXL_SUCCESS);
    for (size_t i = 0; i < kBytes; ++i) {
      const bool copied = i >= offset + 64 && i < offset + 64 + bytes;
      ASSERT_EQ(to.at(there)[i], copied ? std::byte{0x33} : std::byte{0x22}) << "byte " << i;
    }
  }
  std::memset(to.at(there), 0, 16);
  nixlGpuXferStatusH status{NIXL_IN_PROG};
  for (uint64_t i = 1; i <= 3; ++i)
    EXPECT_EQ(nixlAtomicAdd<level>(i, {theirs, 1, 8}, 7, nixl_gpu_flags::defer, &status), NIXL_IN_PROG);
  uint64_t sums[2];
  std::memcpy(sums, to.at(there), sizeof sums);
  EXPECT_EQ(sums[0], 0U);
  EXPECT_EQ(sums[1], 6U);
  EXPECT_EQ(nixlGpuGetXferStatus<level>(status), NIXL_SUCCESS);
  from.agent.releaseMemView(mine);
  from.agent.releaseMemView(theirs);
}

TEST_P(Views, OfAPeerTakePutsAndCounts) {
  const auto [direct, here, there] = GetParam();
  Viewed a("views-a");
  Viewed b("views-b");
  a.load(b);
  put_and_count<nixl_gpu_level_t::THREAD>(a, b, here, there);
  put_and_count<nixl_gpu_level_t::BLOCK>(a, b, here, there);
}

TEST_P(Views, ArePointersToTheMemory) {
  const auto [direct, here, there] = GetParam();
  Viewed a("pointers-a");
  Viewed b("pointers-b");
  a.load(b);
  const nixlMemViewH view = a.remote(b, there);
  auto* const pointer = static_cast<char*>(nixlGetPtr(view, 1));
  ASSERT_NE(pointer, nullptr);
  EXPECT_EQ(pointer == reinterpret_cast<char*>(b.at(there)), direct);
  std::memcpy(pointer + 1000, "here", 4);
  EXPECT_EQ(std::memcmp(b.at(there) + 1000, "here", 4), 0);
  EXPECT_EQ(nixlGetPtr(view, 0), nullptr) << "nobody";
  EXPECT_EQ(nixlGetPtr(view, 3), nullptr) << "past the end";
  EXPECT_EQ(nixlGetPtr(nullptr, 0), nullptr);
  a.agent.releaseMemView(view);
}

INSTANTIATE_TEST_SUITE_P(Ways, Views,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(VRAM_SEG, DRAM_SEG),
                                            ::testing::Values(VRAM_SEG, DRAM_SEG)),
                         [](const auto& way) {
                           return std::string(std::get<0>(way.param) ? "direct" : "mapped") +
                                  nixlEnumStrings::memTypeStr(std::get<1>(way.param)).substr(0, 4) +
                                  nixlEnumStrings::memTypeStr(std::get<2>(way.param)).substr(0, 4);
                         });

class OneView : public ::testing::Test {
 protected:
  void SetUp() override { setenv("TOWLINE_PLUGINS", TOWLINE_CUDA_FAKE, 1); }
  void TearDown() override {
    unsetenv("TOWLINE_PLUGINS");
    unsetenv("TOWLINE_TUNING_CUDA_DIRECT");
  }
};

TEST_F(OneView, BoundsWhatCodeReaches) {
  Viewed a("bounds-a");
  Viewed b("bounds-b");
  a.load(b);
  const nixlMemViewH mine = a.local(VRAM_SEG);
  const nixlMemViewH theirs = a.remote(b, VRAM_SEG);
  const nixlMemViewElem good{theirs, 1, 0};
  nixlGpuXferStatusH status{};
  EXPECT_EQ(nixlPut({mine, 0, 0}, good, 100), NIXL_IN_PROG);
  EXPECT_EQ(nixlPut({mine, 0, 0}, good, 101, 0, 0, &status), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(nixlGpuGetXferStatus(status), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(nixlPut({mine, 0, 1}, good, 100), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(nixlPut({mine, 0, SIZE_MAX}, good, 2), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(nixlPut({mine, 2, 0}, good, 1), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(nixlPut({mine, 1, 0}, {theirs, 0, 0}, 1), NIXL_ERR_INVALID_PARAM) << "nobody";
  EXPECT_EQ(nixlPut({mine, 1, 0}, {theirs, 1, kBytes - 1}, 2), NIXL_ERR_INVALID_PARAM);
  uint64_t other[8] = {};
  EXPECT_EQ(nixlPut({other, 0, 0}, good, 1), NIXL_ERR_INVALID_PARAM) << "no view";
  EXPECT_EQ(nixlAtomicAdd(1, {theirs, 1, 4}), NIXL_ERR_INVALID_PARAM) << "not aligned";
  EXPECT_EQ(nixlAtomicAdd(1, {theirs, 1, kBytes - 7}), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(nixlAtomicAdd(1, {theirs, 0, 0}, 0, 0, &status), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(nixlAtomicAdd<nixl_gpu_level_t::GRID>(1, good), NIXL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(nixlPut<nixl_gpu_level_t::GRID>({mine, 0, 0}, good, 100), NIXL_IN_PROG);
}

TEST_F(OneView, OfOneselfAndOfSeveralAgents) {
  Viewed a("several-a");
  Viewed b("several-b");
  Viewed c("several-c");
  a.load(b);
  a.load(c);
  nixl_remote_dlist_t list(VRAM_SEG);
  for (Viewed* one : {&c, &a, &b}) list.addDesc(nixlRemoteDesc(one->address(VRAM_SEG), kBytes, 0, one->name));
  nixlMemViewH view = nullptr;
  ASSERT_EQ(a.agent.prepMemView(list, view), NIXL_SUCCESS) << towline::nixl::last_error();
  size_t index = 0;
  for (Viewed* one : {&c, &a, &b}) {
    std::memcpy(nixlGetPtr(view, index), one->name.data(), one->name.size());
    EXPECT_EQ(std::memcmp(one->at(VRAM_SEG), one->name.data(), one->name.size()), 0) << index;
    ++index;
  }
  a.agent.releaseMemView(view);
  a.agent.releaseMemView(view);  // warned of, and left alone
}

TEST_F(OneView, OutlivesThePeerAndItsMetadata) {
  setenv("TOWLINE_TUNING_CUDA_DIRECT", "false", 1);
  Viewed a("outlives-a");
  auto b = std::make_unique<Viewed>("outlives-b");
  a.load(*b);
  const nixlMemViewH view = a.remote(*b, VRAM_SEG);
  ASSERT_EQ(a.agent.invalidateRemoteMD(b->name), NIXL_SUCCESS);
  std::memcpy(nixlGetPtr(view, 1), "still", 5);
  EXPECT_EQ(std::memcmp(b->at(VRAM_SEG), "still", 5), 0);
  b.reset();
  std::memcpy(nixlGetPtr(view, 1), "nobody", 6);
}  // the agent frees it

TEST_F(OneView, IsRefusedWithTheReason) {
  Viewed a("refused-a");
  Viewed b("refused-b");
  nixlMemViewH view = &a;
  nixl_remote_dlist_t theirs(VRAM_SEG);
  theirs.addDesc(nixlRemoteDesc(b.address(VRAM_SEG), kBytes, 0, b.name));
  EXPECT_EQ(a.agent.prepMemView(theirs, view), NIXL_ERR_NOT_FOUND) << "not loaded";
  EXPECT_EQ(view, nullptr);
  a.load(b);
  nixl_remote_dlist_t past(VRAM_SEG);
  past.addDesc(nixlRemoteDesc(b.address(VRAM_SEG) + 1, kBytes, 0, b.name));
  EXPECT_EQ(a.agent.prepMemView(past, view), NIXL_ERR_NOT_FOUND) << "more than is registered";
  EXPECT_EQ(a.agent.prepMemView(nixl_remote_dlist_t(VRAM_SEG), view), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(a.agent.prepMemView(nixl_local_dlist_t(FILE_SEG), view), NIXL_ERR_NOT_SUPPORTED);
  EXPECT_NE(towline::nixl::last_error().find("not FILE_SEG"), std::string::npos)
      << towline::nixl::last_error();
  nixl_remote_dlist_t nobody(VRAM_SEG);
  nobody.addDesc(nixlRemoteDesc(0, 0, 0, nixl_null_agent));
  EXPECT_EQ(a.agent.prepMemView(nobody, view), NIXL_SUCCESS) << towline::nixl::last_error();
  EXPECT_EQ(nixlGetPtr(view, 0), nullptr);
}

TEST_F(OneView, NeedsMemoryThatOtherProcessesCanMap) {
  setenv("TOWLINE_TUNING_CUDA_DIRECT", "false", 1);
  Viewed a("private-a");
  Side b("private-b");
  std::string loaded;
  ASSERT_EQ(a.agent.loadRemoteMD(b.metadata(), loaded), NIXL_SUCCESS);
  nixl_remote_dlist_t theirs(DRAM_SEG);
  theirs.addDesc(nixlRemoteDesc(b.address(), 64, 0, b.name));
  nixlMemViewH view = nullptr;
  EXPECT_EQ(a.agent.prepMemView(theirs, view), NIXL_ERR_NOT_SUPPORTED);
  EXPECT_NE(towline::nixl::last_error().find("no address of this memory of agent 'private-b'"),
            std::string::npos)
      << towline::nixl::last_error();
}

TEST_F(OneView, NeedsNoMemoryOfAGpuToSeeHostMemory) {
  Side a("host-only");
  nixlMemViewH view = nullptr;
  ASSERT_EQ(a.agent->prepMemView(a.blocks(3, 64, 128), view), NIXL_SUCCESS) << towline::nixl::last_error();
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(nixlGetPtr(view, i), a.memory.data() + i * 128);
  a.agent->releaseMemView(view);
}

}  // namespace
}  // namespace compat
