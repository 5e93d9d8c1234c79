// Plugins of NIXL's interface on bad days: they can't be used, or their requests end late, never, or not even by force.
#include <dlfcn.h>

#include <thread>

#include "storage_fixture.h"

namespace towline::conformance {
namespace {

class NixlPluginTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 1 << 20;

  void SetUp() override {
    library_ = ::dlopen(TOWLINE_FAKE_NIXL, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << ::dlerror();  // NOLINT(concurrency-mt-unsafe)
    contents_.resize(kBytes);
    stamp_bytes(contents_.data(), kBytes, 5);
    place_.put("file", contents_);
    memory_.resize(kBytes);
  }
  void TearDown() override { ::dlclose(library_); }

  template <class Function>
  [[nodiscard]] Function* get(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(library_, name));
  }
  void fail(const char* what, int times) const { get<void(const char*, int)>("fake_nixl_fail")(what, times); }
  [[nodiscard]] int alive() const { return get<int()>("fake_nixl_alive")(); }

  static std::unique_ptr<Agent> make_agent(const std::string& more = {}) {
    AgentOptions options;
    options.listen = "none";
    options.config = TOWLINE_NIXL + more;
    options.default_timeout = 30s;
    return std::make_unique<Agent>("nixl", options);
  }
  // Empty: the plugin was taken.
  [[nodiscard]] std::string why_not(const std::string& config) const {
    try {
      AgentOptions options;
      options.listen = "none";
      options.config = config;
      const Agent agent("nixl", options);
      (void)agent.register_storage(place_.uri("file"));
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  }
  [[nodiscard]] Transfer reading(const Agent& agent, const Region& file) const {
    return agent.transfer(agent.block_list(file.blocks(0, kBytes)),
                          agent.block_list(Blocks::at(memory_.data(), kBytes)));
  }
  static Status run(const Transfer& transfer) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(30s) : posted;
  }

  void* library_ = nullptr;
  FolderPlace place_{"nixl"};
  std::vector<std::byte> contents_;
  mutable std::vector<std::byte> memory_;
};

TEST_F(NixlPluginTest, PluginsThatCanNotBeUsedSayWhy) {
  const std::pair<const char*, const char*> kSteps[] = {{"init", "nixl_plugin_init returned nothing"},
                                                        {"init_throws", "this plugin never starts"},
                                                        {"version", "it is of plugin version 0"},
                                                        {"create", "it made no engine"},
                                                        {"create_throws", "this engine never starts"},
                                                        {"start", "it failed to start"},
                                                        {"no_local", "does not move files"},
                                                        {"no_files", "does not move files"},
                                                        {"connect", "connect returned"}};
  const int before = alive();
  for (const auto& [step, text] : kSteps) {
    fail(step, 1'000);
    const std::string why = why_not(TOWLINE_NIXL);
    EXPECT_NE(why.find(text), std::string::npos) << step << ": " << why;
    EXPECT_NE(why.find(TOWLINE_FAKE_NIXL), std::string::npos) << step << ": " << why;
    fail(step, 0);
  }
  EXPECT_EQ(alive(), before);
  EXPECT_EQ(why_not(TOWLINE_NIXL), "");
  const std::string no_symbol =
      why_not("plugins = \"nixl\"\n[nixl]\nlibrary = \"" TOWLINE_FAKE_USRBIO "\"\n");
  EXPECT_NE(no_symbol.find("nixl_plugin_init"), std::string::npos) << no_symbol;
  const std::string parameters =
      why_not("plugins = \"nixl\"\n[nixl]\nlibrary = \"" TOWLINE_FAKE_NIXL "\"\nparameters = \"wrong\"\n");
  EXPECT_NE(parameters.find("key=value"), std::string::npos) << parameters;
}

TEST_F(NixlPluginTest, RequestsThatEndLateEndOnce) {
  const auto agent = make_agent();
  const Region memory = agent->register_memory(dram(memory_.data(), kBytes));
  const Region file = agent->register_storage(place_.uri("file"));
  const Transfer read = reading(*agent, file);
  fail("late", 1);
  EXPECT_EQ(run(read), Status::kOk);
  EXPECT_TRUE(memory_ == contents_);
  EXPECT_EQ(get<int()>("fake_nixl_asked_after_end")(), 0);
}

// It ends with success, in the post or when asked, and then once more with an error: whoever asks again, or releases it,
// gets that one.
TEST_F(NixlPluginTest, AnEngineThatCompletesARequestTwiceIsHeardOnce) {
  const int before = alive();
  const auto asked = [&] { return get<int()>("fake_nixl_asked_after_end")(); };
  const int asked_before = asked();
  {
    const auto agent = make_agent();
    const Region memory = agent->register_memory(dram(memory_.data(), kBytes));
    const Region file = agent->register_storage(place_.uri("file"));
    for (const bool at_once : {false, true}) {
      SCOPED_TRACE(at_once);
      std::fill(memory_.begin(), memory_.end(), std::byte{0});
      const Transfer read = reading(*agent, file);
      fail("twice", 1);
      fail("at_once", at_once ? 1 : 0);
      EXPECT_EQ(run(read), Status::kOk);
      EXPECT_EQ(read.wait_fenced(Fence::kBoth, 30s), Status::kOk);
      EXPECT_EQ(read.result().bytes, kBytes);
      EXPECT_TRUE(memory_ == contents_);
      EXPECT_EQ(run(read), Status::kOk) << "and the next run is one of its own";
      EXPECT_EQ(read.result().outcome(), Status::kOk);
    }
    fail("twice", 0);
  }
  EXPECT_EQ(asked(), asked_before);
  EXPECT_EQ(alive(), before) << "what was released with an error after its end is not kept";
}

TEST_F(NixlPluginTest, AnAgentThatEndsWithARequestOpenReleasesIt) {
  const int before = alive();
  {
    const auto agent = make_agent("timeout = \"500ms\"\n");
    const Region memory = agent->register_memory(dram(memory_.data(), kBytes));
    const Region file = agent->register_storage(place_.uri("file"));
    const Transfer read = reading(*agent, file);
    fail("never", 1);
    const int without = alive();
    ASSERT_EQ(read.post(), Status::kInProgress);
    const Deadline soon{10s};
    while (alive() == without && soon.remaining_ns() != 0) std::this_thread::yield();
    ASSERT_EQ(alive(), without + 1) << "the request is with the engine";
    agent->close();
    EXPECT_NE(read.wait(0s), Status::kOk);
    fail("never", 0);
  }
  EXPECT_EQ(alive(), before);
}

TEST_F(NixlPluginTest, RequestsThatNeverEndTimeOutAndTheNextOneWorks) {
  const int before = alive();
  {
    const auto agent = make_agent("timeout = \"50ms\"\n");
    const Region memory = agent->register_memory(dram(memory_.data(), kBytes));
    const Region file = agent->register_storage(place_.uri("file"));
    {
      const Transfer read = reading(*agent, file);
      fail("never", 1);
      EXPECT_EQ(run(read), Status::kTimedOut);
      EXPECT_NE(read.wait_fenced(Fence::kLocal, 10ms), Status::kOk) << "only the plugin knows";
    }
    fail("never", 0);
    EXPECT_EQ(run(reading(*agent, file)), Status::kOk);
    EXPECT_TRUE(memory_ == contents_);
  }
  EXPECT_EQ(alive(), before) << "the request was released, and everything after it";
}

// The engine, the file's descriptor and what the request was made from stay.
TEST_F(NixlPluginTest, AnEngineThatKeepsARequestStays) {
  const int before = alive();
  {
    const auto agent = make_agent("timeout = \"50ms\"\n");
    const Region memory = agent->register_memory(dram(memory_.data(), kBytes));
    const Region file = agent->register_storage(place_.uri("file"));
    fail("held", 1);
    EXPECT_EQ(run(reading(*agent, file)), Status::kTimedOut);
    EXPECT_EQ(run(reading(*agent, file)), Status::kOk);
  }
  EXPECT_GE(alive(), before + 3) << "engine, file and request";
}

}  // namespace
}  // namespace towline::conformance
