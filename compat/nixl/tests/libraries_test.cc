// Backends whose library the user asked for: UCX itself, libfabric.
#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>
#include <set>
#include <string>

#include "support.h"

namespace compat {
namespace {

struct LibraryWay {
  const char* name;
  const char* type;
  nixl_b_params_t parameters;
  const char* variable;     // set while agents are made: NAME
  const char* backend;      // of Towline, that the route names
  std::size_t workers = 1;  // that its requests are split over
};
void PrintTo(const LibraryWay& way, std::ostream* out) { *out << way.name; }

// The workers of the agent that have bytes of this request to move.
std::set<std::string> workers_of(const std::string& route) {
  static const std::regex kPart{R"re("begin":(\d+),(?:"connection":\{.*?\},)?"end":(\d+),"worker":(\d+))re"};
  std::set<std::string> workers;
  for (std::sregex_iterator part{route.begin(), route.end(), kPart}, end; part != end; ++part)
    if ((*part)[1] != (*part)[2]) workers.insert((*part)[3]);
  return workers;
}

class Libraries : public ::testing::TestWithParam<LibraryWay> {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "UCX and libfabric have threads of their own, which ThreadSanitizer can't follow";
#endif
    setenv("UCX_TLS", "tcp", 1);
    setenv("TOWLINE_TUNING_LIBFABRIC_PROVIDER", "tcp;ofi_rxm", 1);
    setenv("TOWLINE_TUNING_LIBFABRIC_ADDRESS", "127.0.0.1", 1);
    if (GetParam().variable != nullptr) setenv(GetParam().variable, "1", 1);
  }
  void TearDown() override {
    for (const char* name :
         {"UCX_TLS", "TOWLINE_TUNING_LIBFABRIC_PROVIDER", "TOWLINE_TUNING_LIBFABRIC_ADDRESS"})
      unsetenv(name);
    if (GetParam().variable != nullptr) unsetenv(GetParam().variable);
  }
};

TEST_P(Libraries, CarryRequestsBothWays) {
  const std::string a_name = std::string("library-a-") + GetParam().name;
  const std::string b_name = std::string("library-b-") + GetParam().name;
  Side a(a_name, 1 << 20, nixlAgentConfig{}, false);
  Side b(b_name, 1 << 20, nixlAgentConfig{}, false);
  for (Side* side : {&a, &b}) {
    ASSERT_EQ(side->agent->createBackend(GetParam().type, GetParam().parameters, side->backend), NIXL_SUCCESS)
        << towline::nixl::last_error();
    ASSERT_EQ(side->agent->registerMem(side->registered()), NIXL_SUCCESS) << towline::nixl::last_error();
  }
  a.load(b);
  for (const nixl_xfer_op_t operation : {NIXL_WRITE, NIXL_READ}) {
    a.fill(operation == NIXL_WRITE ? 'a' : 'k');
    b.fill(operation == NIXL_WRITE ? 'B' : 'R');
    const std::vector<char> moved = operation == NIXL_WRITE ? a.memory : b.memory;
    nixlXferReqH* made = request(a, operation, a.blocks(64, 16384), b.blocks(64, 16384), b_name);
    ASSERT_NE(made, nullptr) << towline::nixl::last_error();
    std::string route;
    ASSERT_EQ(towline::nixl::xfer_route(made, route), NIXL_SUCCESS);
    EXPECT_NE(route.find(std::string("\"backend\":\"") + GetParam().backend), std::string::npos) << route;
    EXPECT_EQ(workers_of(route).size(), GetParam().workers) << route;
    ASSERT_EQ(run(*a.agent, made), NIXL_SUCCESS) << towline::nixl::last_error();
    EXPECT_EQ(a.memory, moved);
    EXPECT_EQ(b.memory, moved);
    EXPECT_EQ(a.agent->releaseXferReq(made), NIXL_SUCCESS);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Asked, Libraries,
    ::testing::Values(
        LibraryWay{"UcxByASetting", "UCX", {}, "TOWLINE_NIXL_UCX", "ucx"},
        LibraryWay{"UcxByItsConfiguration", "UCX", {{"engine_config", "ZCOPY_THRESH=8k"}}, nullptr, "ucx"},
        LibraryWay{"UcxByTransport", "UCX", {{"towline_transport", "ucx"}}, nullptr, "ucx"},
        LibraryWay{"UcxOverSeveralWorkers", "UCX_MO", {{"num_ucx_engines", "2"}}, nullptr, "ucx", 2},
        LibraryWay{"Libfabric", "LIBFABRIC", {}, nullptr, "libfabric"}),
    [](const auto& test) { return test.param.name; });

TEST(LibrariesRefused, WithTheLibrarysReason) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "UCX and libfabric have threads of their own, which ThreadSanitizer can't follow";
#endif
  setenv("TOWLINE_TUNING_LIBFABRIC_PROVIDER", "nosuch", 1);
  nixlAgent agent("refusing-libraries", nixlAgentConfig{});
  unsetenv("TOWLINE_TUNING_LIBFABRIC_PROVIDER");
  nixlBackendH* backend = nullptr;
  EXPECT_NE(agent.createBackend("LIBFABRIC", {}, backend), NIXL_SUCCESS);
  EXPECT_NE(towline::nixl::last_error().find("nosuch"), std::string::npos) << towline::nixl::last_error();
  EXPECT_NE(agent.createBackend("UCX_MO", {{"num_ucx_engines", "none"}}, backend), NIXL_SUCCESS);
  EXPECT_NE(towline::nixl::last_error().find("num_ucx_engines"), std::string::npos);
  // A setting that only tunes UCX is no reason to fail: the best transport does it.
  ASSERT_EQ(agent.createBackend("UCX", {{"engine_config", "RNDV_THRESH=often"}}, backend), NIXL_SUCCESS);
}

}  // namespace
}  // namespace compat
