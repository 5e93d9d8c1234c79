// Exporters of telemetry that are plugins of NIXL's interface: found by name, given events in batches, and bad in every way.
#include <plugin_manager.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>

#include "support.h"
#include "variables.h"

namespace compat {
namespace {

constexpr const char* kOn = "NIXL_TELEMETRY_ENABLE";
constexpr const char* kExporter = "NIXL_TELEMETRY_EXPORTER";

class Exporters : public testing::Test {
 protected:
  void SetUp() override {
    nixlPluginManager::getInstance().addPluginDirectory(PLUGIN_FOLDER);
    std::filesystem::remove(file_);
  }
  void TearDown() override { std::filesystem::remove(file_); }

  [[nodiscard]] std::map<std::string, std::string> variables(
      const std::map<std::string, std::string>& more = {}) const {
    std::map<std::string, std::string> all = {
        {kOn, "y"}, {kExporter, "csv"}, {"TEST_EXPORTER_FILE", file_}, {"NIXL_TELEMETRY_RUN_INTERVAL", "10"}};
    for (const auto& [name, value] : more) all[name] = value;
    return all;
  }
  [[nodiscard]] std::vector<std::string> lines() const {
    std::vector<std::string> all;
    std::ifstream file(file_);
    for (std::string line; std::getline(file, line);) all.push_back(line);
    return all;
  }
  [[nodiscard]] bool has(const std::string& line) const { return std::ranges::count(lines(), line) > 0; }
  // Why an agent with these variables can't be made.
  [[nodiscard]] std::string refusal(const std::map<std::string, std::string>& more) const {
    const Variables set(variables(more));
    try {
      const nixlAgent agent("refused", nixlAgentConfig{});
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "it was made";
  }

  const std::string file_ = testing::TempDir() + "nixl_exporter_" + std::to_string(::getpid());
};

void write_blocks(Side& from, Side& to) {
  nixlXferReqH* moved = request(from, NIXL_WRITE, from.blocks(64, 4096), to.blocks(64, 4096), to.name);
  ASSERT_EQ(run(*from.agent, moved), NIXL_SUCCESS);
  ASSERT_EQ(from.agent->releaseXferReq(moved), NIXL_SUCCESS);
}

TEST_F(Exporters, OfPluginsAreGivenEveryEventWhileTheAgentLives) {
  std::optional<Variables> set(variables());
  Side from("exported");
  set.reset();
  Side to("not_exported");
  from.load(to);
  write_blocks(from, to);
  ASSERT_TRUE(eventually([&] { return has("agent_tx_requests_num,1"); }));
  const std::vector<std::string> all = lines();
  EXPECT_EQ(all.front(), "begin,exported,4096");
  EXPECT_TRUE(has("agent_memory_registered," + std::to_string(from.memory.size())));
  EXPECT_TRUE(has("agent_tx_bytes,262144"));
  // The four of a request lie in one batch.
  const auto first = std::ranges::find(all, "agent_tx_bytes,262144");
  ASSERT_GE(first - all.begin(), 3);
  ASSERT_GE(all.end() - first, 2);
  EXPECT_TRUE((first - 2)->starts_with("agent_xfer_post_time,")) << *(first - 2);
  EXPECT_TRUE((first - 1)->starts_with("agent_xfer_time,")) << *(first - 1);
  EXPECT_EQ(*(first + 1), "agent_tx_requests_num,1");
  const auto handle = nixlPluginManager::getInstance().getTelemetryPlugin("csv");
  ASSERT_NE(handle, nullptr);
  EXPECT_STREQ(handle->getName(), "csv");
  EXPECT_STREQ(handle->getVersion(), "1.2.3");
}

TEST_F(Exporters, GetWhatWaitsWhenTheAgentEnds) {
  {
    const Variables set(variables({{"NIXL_TELEMETRY_RUN_INTERVAL", "3600000"}}));
    const Side from("ended");
    EXPECT_EQ(lines().size(), 1u);
  }
  const std::vector<std::string> all = lines();
  ASSERT_GE(all.size(), 4u);
  EXPECT_TRUE(has("agent_memory_registered,1048576")) << all[2];
  EXPECT_EQ(all.back(), "end");
}

TEST_F(Exporters, AreGivenTheEventsThatAreNamedOnly) {
  {
    const Variables set(variables({{"NIXL_TELEMETRY_ENABLED_METRICS", "agent_tx_*"}}));
    Side from("chosen");
    Side to("chosen_to");
    from.load(to);
    write_blocks(from, to);
  }
  EXPECT_TRUE(has("agent_tx_bytes,262144"));
  for (const std::string& line : lines()) {
    EXPECT_FALSE(line.starts_with("agent_memory") || line.starts_with("agent_xfer")) << line;
  }
}

TEST_F(Exporters, ThatAreBehindHoldNothingUpAndAreToldWhatTheyMissed) {
  {
    const Variables set(
        variables({{"NIXL_TELEMETRY_RUN_INTERVAL", "3600000"}, {"NIXL_TELEMETRY_BUFFER_SIZE", "4"}}));
    Side from("behind");
    Side to("behind_to");
    from.load(to);
    for (int i = 0; i < 100; ++i) write_blocks(from, to);
  }
  uint64_t told = 0;
  uint64_t missed = 0;
  constexpr std::string_view kDropped = "agent_telemetry_events_dropped,";
  for (const std::string& line : lines()) {
    if (line.starts_with(kDropped)) {
      missed += std::stoull(line.substr(kDropped.size()));
    } else if (line.starts_with("agent_")) {
      ++told;
    }
  }
  // One of each agent's memory, and the four of a request only together.
  EXPECT_EQ(told, 2u);
  EXPECT_EQ(missed, 400u);
}

TEST_F(Exporters, ThatFailLoseTheirEventsAndNothingElse) {
  for (const char* how : {"export", "throw"}) {
    const Variables set(variables({{"TEST_EXPORTER_FAILS", how}}));
    Side from("failing");
    Side to("failing_to");
    from.load(to);
    write_blocks(from, to);
  }
  EXPECT_FALSE(has("agent_tx_bytes,262144"));
}

TEST_F(Exporters, WhoseAddressIsTakenLeaveTheAgentWithoutOutput) {
  const Variables set(variables({{"TEST_EXPORTER_FAILS", "taken"}}));
  Side from("taken");
  Side to("taken_to");
  from.load(to);
  write_blocks(from, to);
}

TEST_F(Exporters, ThatCannotBeUsedAreRefusedWithTheReason) {
  const auto says = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_PRED2(says, refusal({{kExporter, "nowhere"}}), "there is no libtelemetry_exporter_nowhere.so in ");
  EXPECT_PRED2(says, refusal({{kExporter, "../plugins/x"}}), "'../plugins/x'");
  EXPECT_PRED2(says, refusal({{kExporter, "old"}}),
               "is of telemetry plugin version 1, and this agent takes version 2");
  EXPECT_PRED2(says, refusal({{kExporter, "noinit"}}), "has no function nixl_telemetry_plugin_init");
  EXPECT_PRED2(says, refusal({{"TEST_EXPORTER_FAILS", "make"}}), "the exporter 'csv' of ");
  EXPECT_PRED2(says, refusal({{"NIXL_TELEMETRY_RUN_INTERVAL", "0"}}), "NIXL_TELEMETRY_RUN_INTERVAL is '0'");
  EXPECT_PRED2(says, refusal({{"NIXL_TELEMETRY_BUFFER_SIZE", "3"}}), "NIXL_TELEMETRY_BUFFER_SIZE is '3'");
}

TEST_F(Exporters, TakeTheNameOfOneOfTowlinesWhereTheUserSaysSo) {
  const std::string folder = testing::TempDir() + "nixl-exporters";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(PLUGIN_FOLDER "/libtelemetry_exporter_csv.so",
                             folder + "/libtelemetry_exporter_prometheus.so",
                             std::filesystem::copy_options::overwrite_existing);
  {
    const Variables set(variables(
        {{kExporter, "prometheus"}, {"NIXL_PLUGIN_DIR", folder}, {"TOWLINE_NIXL_PLUGINS", "prometheus"}}));
    const nixlAgent agent("named", nixlAgentConfig{});
  }
  EXPECT_TRUE(has("begin,named,4096"));
}

TEST_F(Exporters, AreLeftAloneByAForkedChild) {
  const Variables set(variables());
  auto from = std::make_unique<Side>("forked");
  const pid_t child = ::fork();
  if (child == 0) {
    from.reset();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(has("end"));
  from.reset();
  EXPECT_TRUE(has("end"));
}

}  // namespace
}  // namespace compat
