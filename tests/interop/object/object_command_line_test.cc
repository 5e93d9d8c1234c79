// The command line with objects, as somebody runs it who has read the documentation: the server and its
// credentials come from Amazon's variables.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "fixture.h"

namespace towline::interop {
namespace {

using nlohmann::json;

class ObjectCommandLine : public ObjectTest {
 protected:
  void SetUp() override {
#ifndef TOWLINE_TOOL
    GTEST_SKIP() << "built without the command line";
#endif
    ObjectTest::SetUp();
  }

  struct Ended {
    int code;
    std::string output;
  };
  [[nodiscard]] static Ended towline([[maybe_unused]] const std::string& arguments,
                                     [[maybe_unused]] const std::string& url = server_->url()) {
    Ended ended{-1, {}};
#ifdef TOWLINE_TOOL
    const std::string command = "AWS_ENDPOINT_URL=" + url + " AWS_ACCESS_KEY_ID=" + kAccessKey +
                                " AWS_SECRET_ACCESS_KEY=" + kSecretKey + " " + TOWLINE_TOOL + " " +
                                arguments + " 2>&1";
    FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return ended;
    std::array<char, 4096> text;
    while (const size_t count = std::fread(text.data(), 1, text.size(), pipe))
      ended.output.append(text.data(), count);
    const int status = ::pclose(pipe);
    ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
#endif
    return ended;
  }
  // Azure's emulator, which the variables of the command line name meanwhile.
  template <class Work>
  static void with_azure(const Work& work) {
    const AzureServer azure;
    const std::pair<const char*, std::string> variables[] = {
        {"TOWLINE_AZURE_ENDPOINT", AzureServer::endpoint(azure.port())},
        {"AZURE_STORAGE_ACCOUNT", AzureServer::kAccount},
        {"AZURE_STORAGE_KEY", AzureServer::kKey}};
    for (const auto& [name, value] : variables)
      ::setenv(name, value.c_str(), 1);  // NOLINT: no agent is being made
    work();
    for (const auto& [name, value] : variables) ::unsetenv(name);  // NOLINT
  }
  [[nodiscard]] std::string make_file(const std::string& name, uint64_t bytes, uint64_t seed) const {
    std::vector<std::byte> all(bytes);
    stamp_bytes(all.data(), bytes, seed);
    std::ofstream(folder_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(all.data()), static_cast<std::streamsize>(bytes));
    return folder_ / name;
  }
  [[nodiscard]] static std::vector<char> read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TemporaryFolder folder_;
};

TEST_F(ObjectCommandLine, MeasuresFilesAndObjectsInOneTableAndFindsEveryByte) {
  const std::pair<const char*, std::string> variables[] = {{"TOWLINE_GCS_ENDPOINT", server_->url()},
                                                           {"TOWLINE_GCS_REGION", "us-east-1"},
                                                           {"GS_ACCESS_KEY_ID", kAccessKey},
                                                           {"GS_SECRET_ACCESS_KEY", kSecretKey}};
  for (const auto& [name, value] : variables)
    ::setenv(name, value.c_str(), 1);  // NOLINT: no agent is being made
  std::map<std::string, std::string> expected = {
      {folder_.path(), "posix"}, {"s3://bucket/measured", "object"}, {"gs://bucket/measured", "gcs"}};
  std::optional<AzureServer> azure;
  if (!AzureServer::program().empty()) {
    azure.emplace();
    expected["az://bucket/measured"] = "azure";
    ::setenv("TOWLINE_AZURE_ENDPOINT", AzureServer::endpoint(azure->port()).c_str(), 1);  // NOLINT
    ::setenv("AZURE_STORAGE_ACCOUNT", AzureServer::kAccount, 1);                          // NOLINT
    ::setenv("AZURE_STORAGE_KEY", AzureServer::kKey, 1);                                  // NOLINT
  }
  std::string places;
  for (const auto& [place, backend] : expected) places += (places.empty() ? "" : ",") + place;
  const Ended ended = towline("bench --storage " + places +
                              " --from both --sizes 64KiB --batches 4 --depths 2 --time 100ms --json");
  for (const char* name :
       {"TOWLINE_GCS_ENDPOINT", "TOWLINE_GCS_REGION", "GS_ACCESS_KEY_ID", "GS_SECRET_ACCESS_KEY",
        "TOWLINE_AZURE_ENDPOINT", "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY"})
    ::unsetenv(name);  // NOLINT
  ASSERT_EQ(ended.code, 0) << ended.output;
  std::map<std::string, int> rows;
  const json measured = json::parse(ended.output);
  for (const json& row : measured.at("rows")) {
    const std::string place = row.at("storage");
    EXPECT_EQ(row.at("route").get<std::string>().substr(0, expected.at(place).size()), expected.at(place));
    EXPECT_EQ(row.at("wrong_blocks"), 0);
    ++rows[place];
  }
  for (const auto& [place, backend] : expected) EXPECT_EQ(rows[place], 2) << place;
  EXPECT_EQ(agent_->list_storage("s3://bucket/measured/towline-bench-").size(),
            2 * 4u);  // of each row two; gs:// is there too
}

TEST_F(ObjectCommandLine, CopiesAFileToAnObjectAndBack) {
  const std::string from = make_file("from", 20'000'001, 1);
  const std::string back = folder_ / "back";
  Ended ended = towline("cp " + from + " s3://bucket/copied/file --verify --json");
  ASSERT_EQ(ended.code, 0) << ended.output;
  const json summary = json::parse(ended.output);
  EXPECT_EQ(summary["bytes"], 20'000'001);
  EXPECT_EQ(summary["verified"], true);
  ended = towline("cp s3://bucket/copied/file " + back);
  ASSERT_EQ(ended.code, 0) << ended.output;
  EXPECT_TRUE(read_file(from) == read_file(back));
}

// Without a file of settings: the scheme is enough.
TEST_F(ObjectCommandLine, ListsWhatAPrefixHolds) {
  const auto expect_lists = [&](const std::string& prefix) {
    const std::string key = prefix + "listed/";
    Ended ended = towline("cp " + make_file("small", 1000, 6) + " " + key + "small");
    ASSERT_EQ(ended.code, 0) << ended.output;
    ended = towline("cp " + make_file("large", 9'000'000, 7) + " " + key + "deeper/large");
    ASSERT_EQ(ended.code, 0) << ended.output;
    ended = towline("ls " + key + " --json");
    ASSERT_EQ(ended.code, 0) << ended.output;
    std::map<std::string, uint64_t> found;
    const json listed = json::parse(ended.output);
    for (const json& entry : listed.at("entries")) found[entry.at("place")] = entry.at("bytes");
    EXPECT_EQ(found,
              (std::map<std::string, uint64_t>{{key + "small", 1000}, {key + "deeper/large", 9'000'000}}));
    ended = towline("ls " + prefix);
    ASSERT_EQ(ended.code, 0) << ended.output;
    EXPECT_NE(ended.output.find(key + "small"), std::string::npos) << ended.output;
  };
  expect_lists("s3://bucket/");
  if (!AzureServer::program().empty()) with_azure([&] { expect_lists("az://bucket/"); });
}

TEST_F(ObjectCommandLine, CopiesAPeersMemoryToAnObjectAndBack) {
  constexpr uint64_t kMemory = 9'000'000;
  const Agent owner("owner", {.listen = "127.0.0.1:0"});
  Memory memory(kMemory);
  stamp_bytes(memory.data(), kMemory, 2);
  const Region region = owner.register_memory(dram(memory), {.access = Access::kAll});
  const std::string peer = "peer:" + std::string(owner.address());
  const std::string bytes = " --bytes " + std::to_string(kMemory);
  Ended ended = towline("cp " + peer + " s3://bucket/copied/memory --verify" + bytes);
  ASSERT_EQ(ended.code, 0) << ended.output;
  std::memset(memory.data(), 0, kMemory);
  ended = towline("cp s3://bucket/copied/memory " + peer + bytes);
  ASSERT_EQ(ended.code, 0) << ended.output;
  EXPECT_EQ(first_difference(memory.data(), kMemory, 2), kMemory);
}

// A server keeps, and charges for, parts that nobody takes back.
TEST_F(ObjectCommandLine, AnInterruptedUploadLeavesNothingAtTheServer) {
  S3Server own({"bucket"});
  const std::string from = make_file("from", 64 << 20, 4);
  const pid_t copy = ::fork();
  if (copy == 0) {
#ifdef TOWLINE_TOOL
    ::setenv("AWS_ENDPOINT_URL", own.url().c_str(), 1);
    ::setenv("AWS_ACCESS_KEY_ID", kAccessKey, 1);
    ::setenv("AWS_SECRET_ACCESS_KEY", kSecretKey, 1);
    ::execl(TOWLINE_TOOL, "towline", "cp", from.c_str(), "s3://bucket/interrupted", "--piece", "8MiB",
            "--rate", "4MB", static_cast<char*>(nullptr));
#endif
    ::_exit(127);
  }
  ASSERT_GT(copy, 0);
  int status = 0;
  while (own.unfinished_uploads() == 0 && ::waitpid(copy, &status, WNOHANG) == 0) std::this_thread::yield();
  EXPECT_EQ(own.unfinished_uploads(), 1u);
  ::kill(copy, SIGINT);
  ASSERT_EQ(::waitpid(copy, &status, 0), copy);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 130) << status;
  EXPECT_EQ(own.unfinished_uploads(), 0u);
}

TEST_F(ObjectCommandLine, AnUploadThatTookTooLongSaysThatItBeginsAnew) {
  Proxy proxy(server_->port(),
              [](const Request& request) { return Fault{.hold = request.has("partNumber=2&")}; });
  const std::string from = make_file("from", 64 << 20, 5);
  Ended ended = towline("cp " + from + " s3://bucket/late --piece 8MiB --timeout 1s", proxy.url());
  EXPECT_EQ(ended.code, 1);
  EXPECT_NE(ended.output.find("--timeout gives it more time; the same command uploads it anew"),
            std::string::npos)
      << ended.output;
  ended = towline("cp " + from + " s3://bucket/late");
  EXPECT_EQ(ended.code, 0) << ended.output;
}

TEST_F(ObjectCommandLine, SaysWhatIsWrong) {
  Ended ended = towline("cp s3://bucket/nothing/there " + std::string(folder_ / "to"));
  EXPECT_NE(ended.code, 0);
  EXPECT_NE(ended.output.find("nothing/there"), std::string::npos) << ended.output;
  ended = towline("cp " + make_file("from", 1000, 3) + " s3://no-such-bucket/key");
  EXPECT_NE(ended.code, 0);
  EXPECT_NE(ended.output.find("no-such-bucket"), std::string::npos) << ended.output;
}

TEST_F(ObjectCommandLine, AReplaySpillsEvictedBlocksToObjectsAndGetsThemBack) {
  const auto expect_spills = [&](const std::string& place) {
    const Ended ended =
        towline("replay --spill " + place + " --layers 1 --dtype fp8 --pool 56MiB --requests 24 --json");
    ASSERT_EQ(ended.code, 0) << ended.output;
    const json summary = json::parse(ended.output);
    ASSERT_TRUE(summary.contains("spill")) << ended.output;
    const json& spill = summary["spill"];
    EXPECT_GT(spill["spilled_blocks"], 0);
    EXPECT_GT(spill["restored_blocks"], 0);
    EXPECT_GT(spill["restored_bytes"], 0);
    EXPECT_TRUE(spill.contains("hit_latency"));
  };
  expect_spills("s3://bucket/spilled");
  if (!AzureServer::program().empty()) with_azure([&] { expect_spills("az://bucket/spilled"); });
}

}  // namespace
}  // namespace towline::interop
