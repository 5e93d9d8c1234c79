// Backends that move data in the clear, in agents with keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "agent/agent.h"
#include "base/error.h"
#include "base/log.h"
#include "secure/test_support.h"

namespace towline {
namespace {

class SecuredBackends : public testing::Test {
 protected:
  void SetUp() override { TOWLINE_NEEDS_TLS(); }
  void TearDown() override { set_log_sink(nullptr, nullptr); }

  std::shared_ptr<Agent> make_agent() {
    AgentOptions options;
    options.name = "keyed";
    options.listen = "none";
    options.config.set("secure.key_file", folder_.file("key", secure::testing::key_text()));
    return Agent::create(std::move(options));
  }
  const secure::testing::Folder folder_;
};

// Adding one is naming it: what stops it can only be that this host lacks its library.
TEST_F(SecuredBackends, ABackendThatIsAddedHasBeenNamed) {
  const auto agent = make_agent();
  std::vector<std::string> names = {"rdma", "libfabric"};
#if !defined(__SANITIZE_THREAD__)  // UCX takes over calls that threads make before ThreadSanitizer knows them
  names.emplace_back("ucx");
#endif
  for (const std::string& name : names) {
    const bool there_already =
        name == "rdma" && agent->backends().find(name) != nullptr && agent->backends().find(name)->open();
    if (there_already) continue;
    std::vector<std::string> lines;
    set_log_sink(
        [](void* to, LogLevel, std::string_view line) {
          static_cast<std::vector<std::string>*>(to)->emplace_back(line);
        },
        &lines);
    try {
      agent->add_backend(name);
    } catch (const Error& error) {
      EXPECT_EQ(error.message().find("not used with secure.*"), std::string::npos) << error.message();
    }
    set_log_sink(nullptr, nullptr);
    const auto warned = [&](const std::string& line) {
      return line.find(name) != std::string::npos && line.find("in the clear") != std::string::npos;
    };
    EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), warned)) << name;
  }
}

TEST_F(SecuredBackends, TcpxIsRefusedAlsoWhereItIsNamed) {
  const auto agent = make_agent();
  EXPECT_THROW(agent->add_backend("tcpx"), Error);
}

}  // namespace
}  // namespace towline
