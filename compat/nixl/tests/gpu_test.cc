// GPU memory through NIXL's interface, by the transports that UCX_TLS names. GPUs are made of host memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "support.h"

namespace compat {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPages = 600;

struct Way {
  const char* name;
  const char* tls;
  const char* backend;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class GpuMemory : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    setenv("TOWLINE_PLUGINS", TOWLINE_CUDA_FAKE, 1);
    setenv("UCX_TLS", GetParam().tls, 1);
  }
  void TearDown() override {
    unsetenv("UCX_TLS");
    unsetenv("TOWLINE_PLUGINS");
  }
};

nixl_reg_dlist_t vram(const Side& side) {
  nixl_reg_dlist_t list(VRAM_SEG);
  list.addDesc(nixlBlobDesc(side.address(), side.memory.size(), 0, ""));
  return list;
}

nixl_xfer_dlist_t pages(const Side& side, bool backwards) {
  nixl_xfer_dlist_t list(VRAM_SEG);
  for (size_t i = 0; i < kPages; ++i)
    list.emplace(side.address() + (backwards ? kPages - 1 - i : i) * kPage, kPage, uint64_t{0});
  return list;
}

TEST_P(GpuMemory, PagesMoveBothWays) {
  const std::string a_name = std::string("gpu-a-") + GetParam().name;
  const std::string b_name = std::string("gpu-b-") + GetParam().name;
  Side a(a_name, kPages * kPage, nixlAgentConfig{}, false);
  Side b(b_name, kPages * kPage, nixlAgentConfig{}, false);
  for (Side* side : {&a, &b}) {
    ASSERT_EQ(side->agent->createBackend("UCX", {}, side->backend), NIXL_SUCCESS)
        << towline::nixl::last_error();
    ASSERT_EQ(side->agent->registerMem(vram(*side)), NIXL_SUCCESS) << towline::nixl::last_error();
  }
  a.load(b);
  for (const nixl_xfer_op_t operation : {NIXL_WRITE, NIXL_READ}) {
    a.fill(operation == NIXL_WRITE ? 'a' : 'k');
    b.fill(operation == NIXL_WRITE ? 'B' : 'R');
    const std::vector<char> moved = operation == NIXL_WRITE ? a.memory : b.memory;
    nixlXferReqH* made = request(a, operation, pages(a, false), pages(b, true), b_name);
    ASSERT_NE(made, nullptr) << towline::nixl::last_error();
    std::string route;
    ASSERT_EQ(towline::nixl::xfer_route(made, route), NIXL_SUCCESS);
    EXPECT_NE(route.find(std::string("\"backend\":\"") + GetParam().backend), std::string::npos) << route;
    ASSERT_EQ(run(*a.agent, made), NIXL_SUCCESS) << towline::nixl::last_error();
    for (size_t i = 0; i < kPages; ++i) {
      const auto& from = operation == NIXL_WRITE ? a.memory : b.memory;
      const auto& to = operation == NIXL_WRITE ? b.memory : a.memory;
      ASSERT_TRUE(std::equal(&from[i * kPage], &from[i * kPage] + kPage, &to[(kPages - 1 - i) * kPage]))
          << "page " << i;
    }
    const auto& source = operation == NIXL_WRITE ? a.memory : b.memory;
    EXPECT_EQ(source, moved) << "the source has changed";
    EXPECT_EQ(a.agent->releaseXferReq(made), NIXL_SUCCESS);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, GpuMemory,
                         ::testing::Values(Way{"through_host_memory", "tcp,cuda_copy", "tcp"},
                                           Way{"direct", "tcp,cuda_copy,cuda_ipc", "cuda"},
                                           Way{"any", "all", "cuda"}),
                         [](const auto& way) { return std::string(way.param.name); });

}  // namespace
}  // namespace compat
