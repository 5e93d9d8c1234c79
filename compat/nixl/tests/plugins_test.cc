// Backends that are plugins of NIXL's interface: found, loaded, used, and bad in every way.
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include <dlfcn.h>
#include <plugin_manager.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stop_token>
#include <thread>
#include <vector>

#include "support.h"

nixlBackendPlugin* createStaticMOVERPlugin();

namespace compat {
namespace {

class Plugins : public testing::Test {
 protected:
  void SetUp() override { nixlPluginManager::getInstance().addPluginDirectory(PLUGIN_FOLDER); }
  static int counted(const char* what) {
    void* library = dlopen(PLUGIN_FOLDER "/libplugin_MOVER.so", RTLD_NOW | RTLD_LOCAL);
    const auto count = reinterpret_cast<int (*)()>(dlsym(library, what));
    const int number = count == nullptr ? -1 : count();
    dlclose(library);
    return number;
  }
  // The number of agents' objects that the plugin's engines still hold.
  static int known_alive() { return counted("mover_known_alive"); }
};

// An agent whose only backend is the plugin's.
struct Moving : Side {
  explicit Moving(const std::string& agent_name, const nixl_b_params_t& params = {},
                  const nixlAgentConfig& config = nixlAgentConfig{})
      : Side(agent_name, 1 << 16, config, false) {
    created = agent->createBackend("MOVER", params, backend);
    if (created == NIXL_SUCCESS) registering = agent->registerMem(registered());
  }
  nixl_status_t created = NIXL_ERR_UNKNOWN;
  nixl_status_t registering = NIXL_ERR_UNKNOWN;
};

TEST_F(Plugins, AreFoundByNameAndSayWhatTheyAre) {
  nixlAgent agent("finder", nixlAgentConfig{});
  std::vector<nixl_backend_t> names;
  ASSERT_EQ(agent.getAvailPlugins(names), NIXL_SUCCESS);
  EXPECT_EQ(std::ranges::count(names, "MOVER"), 1);
  nixl_mem_list_t kinds;
  nixl_b_params_t params;
  ASSERT_EQ(agent.getPluginParams("MOVER", kinds, params), NIXL_SUCCESS) << towline::nixl::last_error();
  EXPECT_EQ(kinds, nixl_mem_list_t{DRAM_SEG});
  EXPECT_EQ(params, (nixl_b_params_t{{"polls", "0"}, {"cancel", "yes"}}));
  const auto handle = nixlPluginManager::getInstance().getBackendPlugin("MOVER");
  ASSERT_NE(handle, nullptr);
  EXPECT_STREQ(handle->getName(), "MOVER");
  EXPECT_STREQ(handle->getVersion(), "1.0.0");
}

TEST_F(Plugins, AreFoundInNixlPluginDir) {
  const std::string folder = testing::TempDir() + "nixl-plugin-dir";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(PLUGIN_FOLDER "/libplugin_MOVER.so", folder + "/libplugin_ELSEWHERE.so",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_FALSE(nixlPluginManager::getInstance().knows("ELSEWHERE"));
  ASSERT_EQ(setenv("NIXL_PLUGIN_DIR", folder.c_str(), 1), 0);
  nixlAgent agent("by-directory", nixlAgentConfig{});
  nixlBackendH* backend = nullptr;
  EXPECT_EQ(agent.createBackend("ELSEWHERE", {}, backend), NIXL_SUCCESS) << towline::nixl::last_error();
  ASSERT_EQ(unsetenv("NIXL_PLUGIN_DIR"), 0);
}

TEST_F(Plugins, ThatCannotBeUsedSayWhy) {
  nixlAgent agent("refuser", nixlAgentConfig{});
  nixlBackendH* backend = nullptr;
  for (const auto& [name, why] : {std::pair{"OLD", "is of plugin version 0, and this agent takes version 1"},
                                  {"THROWS", "nixl_plugin_init failed"},
                                  {"NULLINIT", "nixl_plugin_init failed"},
                                  {"NOINIT", "has no function nixl_plugin_init"},
                                  {"BADSYMBOL", "is_not_defined_anywhere"},
                                  {"../MOVER", "there is no backend '../MOVER'"}}) {
    EXPECT_EQ(agent.createBackend(name, {}, backend), NIXL_ERR_NOT_FOUND) << name;
    EXPECT_NE(towline::nixl::last_error().find(why), std::string::npos)
        << name << ": " << towline::nixl::last_error();
    EXPECT_EQ(backend, nullptr);
  }
}

TEST_F(Plugins, MoveBytesAndNotificationsBetweenTwoAgents) {
  {
    Moving here("mover-here");
    Moving there("mover-there");
    ASSERT_EQ(here.registering, NIXL_SUCCESS) << towline::nixl::last_error();
    here.load(there);
    here.fill('a');
    nixl_opt_args_t args = with_notif("two pages");
    nixlXferReqH* made =
        request(here, NIXL_WRITE, here.blocks(8, 512), there.blocks(8, 512), there.name, &args);
    ASSERT_NE(made, nullptr);
    nixlBackendH* by = nullptr;
    ASSERT_EQ(here.agent->queryXferBackend(made, by), NIXL_SUCCESS);
    EXPECT_EQ(by, here.backend);
    EXPECT_EQ(run(*here.agent, made), NIXL_SUCCESS);
    EXPECT_TRUE(std::equal(here.memory.begin(), here.memory.begin() + 4096, there.memory.begin()));
    std::vector<std::string> texts;
    ASSERT_TRUE(receives(*there.agent, here.name, 1, texts));
    EXPECT_EQ(texts, std::vector<std::string>{"two pages"});
    std::chrono::microseconds duration{};
    std::chrono::microseconds margin{};
    nixl_cost_t method{};
    EXPECT_EQ(here.agent->estimateXferCost(made, duration, margin, method), NIXL_SUCCESS);
    EXPECT_EQ(duration.count(), 42);
    EXPECT_EQ(here.agent->releaseXferReq(made), NIXL_SUCCESS);
    EXPECT_EQ(here.agent->genNotif(there.name, "alone"), NIXL_SUCCESS);
    ASSERT_TRUE(receives(*there.agent, here.name, 1, texts));
    EXPECT_EQ(texts, std::vector<std::string>{"alone"});
    EXPECT_GT(known_alive(), 0);
  }
  EXPECT_EQ(known_alive(), 0);  // everything that the engines were given was taken back
}

TEST_F(Plugins, MoveBytesBetweenProcesses) {
  Child child("plugin-child", {"NIXL_PLUGIN_DIR=" PLUGIN_FOLDER, "COMPAT_BACKEND=MOVER"});
  Moving here("plugin-parent");
  std::string name;
  ASSERT_EQ(here.agent->loadRemoteMD(from_hex(child.ask("metadata")), name), NIXL_SUCCESS)
      << towline::nixl::last_error();
  here.fill('q');
  nixl_xfer_dlist_t theirs(DRAM_SEG);
  theirs.addDesc(nixlBasicDesc(std::stoull(child.ask("address")), 4096, 0));
  nixlXferReqH* made = request(here, NIXL_WRITE, here.blocks(1, 4096), theirs, name);
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(run(*here.agent, made), NIXL_SUCCESS);
  EXPECT_EQ(child.ask("byte 0"), std::to_string(static_cast<int>('q')));
}

TEST_F(Plugins, TakePreparedListsAndMergeAdjacentBlocks) {
  Moving side("mover-lists");
  side.fill('k');
  nixlDlistH* from = nullptr;
  nixlDlistH* to = nullptr;
  ASSERT_EQ(side.agent->prepXferDlist(NIXL_INIT_AGENT, side.blocks(8, 64), from), NIXL_SUCCESS);
  nixl_xfer_dlist_t target(DRAM_SEG);
  for (size_t i = 0; i < 8; ++i) target.emplace(side.address() + 8192 + 64 * i, size_t{64}, uint64_t{0});
  ASSERT_EQ(side.agent->prepXferDlist(side.name, target, to), NIXL_SUCCESS);
  nixlXferReqH* made = nullptr;
  ASSERT_EQ(side.agent->makeXferReq(NIXL_WRITE, from, {0, 1, 2, 5}, to, {3, 4, 5, 0}, made), NIXL_SUCCESS)
      << towline::nixl::last_error();
  EXPECT_EQ(run(*side.agent, made), NIXL_SUCCESS);
  const char* memory = side.memory.data();
  EXPECT_EQ(std::memcmp(memory, memory + 8192 + 3 * 64, 3 * 64), 0);
  EXPECT_EQ(std::memcmp(memory + 5 * 64, memory + 8192, 64), 0);
  const std::array<int, 1> first = {0};
  nixlXferReqH* same = nullptr;  // by the call of 1.5.2
  ASSERT_EQ(side.agent->makeXferReq(NIXL_WRITE, *from, first, *to, first, same), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->releaseXferReq(same), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->makeXferReq(NIXL_WRITE, from, {8}, to, {0}, made), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(side.agent->makeXferReq(NIXL_WRITE, from, {-1}, to, {0}, made), NIXL_ERR_INVALID_PARAM);
}

// A block table that another thread refills: every index is used as it was checked, or refused.
TEST_F(Plugins, IndicesAreUsedAsTheyWereCheckedWhileAnotherThreadWritesToThem) {
  Moving side("mover-refilled");
  nixlDlistH* list = nullptr;
  ASSERT_EQ(side.agent->prepXferDlist(NIXL_INIT_AGENT, side.blocks(8, 64), list), NIXL_SUCCESS);
  nixlDlistH* target = nullptr;
  ASSERT_EQ(side.agent->prepXferDlist(side.name, side.blocks(8, 64), target), NIXL_SUCCESS);
  std::vector<int> indices(2000);
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int>(7 - i % 8);
  const std::vector<int> others = indices;
  const std::jthread writer([place = &indices[1000], one = indices[1000]](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      __atomic_store_n(place, 0x7ffffff0, __ATOMIC_RELAXED);
      __atomic_store_n(place, one, __ATOMIC_RELAXED);
    }
  });
  std::array<int, 2> seen{};                                                     // refused, made
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);  // on a busy machine
  while ((seen[0] < 50 || seen[1] < 50) && std::chrono::steady_clock::now() < end) {
    nixlXferReqH* made = nullptr;
    const nixl_status_t status = side.agent->makeXferReq(NIXL_WRITE, *list, indices, *target, others, made);
    ASSERT_TRUE(status == NIXL_SUCCESS || status == NIXL_ERR_INVALID_PARAM) << status;
    ++seen[status == NIXL_SUCCESS];
    if (status == NIXL_SUCCESS) {
      EXPECT_EQ(side.agent->releaseXferReq(made), NIXL_SUCCESS);
    }
  }
  EXPECT_GT(seen[0], 0);
  EXPECT_GT(seen[1], 0);
}

TEST_F(Plugins, ListsOfRemovedMemoryAreRefused) {
  Moving side("mover-removed");
  nixlDlistH* from = nullptr;
  nixlDlistH* to = nullptr;
  nixlXferReqH* before = nullptr;
  nixlXferReqH* made = nullptr;
  ASSERT_EQ(side.agent->prepXferDlist(NIXL_INIT_AGENT, side.blocks(1, 64), from), NIXL_SUCCESS);
  ASSERT_EQ(side.agent->prepXferDlist(side.name, side.blocks(1, 64), to), NIXL_SUCCESS);
  ASSERT_EQ(side.agent->makeXferReq(NIXL_WRITE, from, {0}, to, {0}, before), NIXL_SUCCESS);
  ASSERT_EQ(side.agent->deregisterMem(side.registered()), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->makeXferReq(NIXL_WRITE, from, {0}, to, {0}, made), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(side.agent->postXferReq(before), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(side.agent->getXferStatus(before), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(side.agent->deregisterMem(side.registered()), NIXL_ERR_NOT_FOUND);
}

TEST_F(Plugins, RegisterAllOrNothing) {
  Moving side("mover-nothing");
  const int before = known_alive();
  nixl_reg_dlist_t two(DRAM_SEG);
  two.addDesc(nixlBlobDesc(side.address(), 64, 0, ""));
  two.addDesc(nixlBlobDesc(side.address() + 64, 64, 0, "refuse"));
  EXPECT_EQ(side.agent->registerMem(two), NIXL_ERR_BACKEND);
  EXPECT_EQ(known_alive(), before);
}

// Every step at which an engine can fail, by a status and by an exception.
TEST_F(Plugins, FailingAtAnyStepIsAnErrorAndLeavesNothing) {
  const std::vector<const char*> creating = {"create",        "constructor", "supportsRemote",
                                             "supportsNotif", "getConnInfo", "connect"};
  for (const char* how : {"fail", "throw"}) {
    for (const char* step : creating) {
      const bool can = std::string{how} == "fail"
                           ? std::string{step} != "supportsRemote"
                           : std::string{step} != "create" && std::string{step} != "supportsNotif";
      if (!can) continue;
      Moving side("mover-creating", {{how, step}});
      EXPECT_EQ(side.created, NIXL_ERR_BACKEND) << how << " " << step;
      EXPECT_EQ(side.backend, nullptr);
    }
    for (const char* step : {"registerMem", "getPublicData", "loadLocalMD"}) {
      Moving side("mover-registering", {{how, step}});
      EXPECT_EQ(side.registering, NIXL_ERR_BACKEND) << how << " " << step;
    }
    for (const char* step : {"loadRemoteConnInfo", "loadRemoteMD"}) {
      Moving side("mover-loading", {{how, step}});
      Moving other("mover-loaded");
      std::string name;
      EXPECT_EQ(side.agent->loadRemoteMD(other.metadata(), name), NIXL_ERR_BACKEND) << how << " " << step;
    }
    for (const char* step : {"prepXfer", "postXfer", "checkXfer", "releaseReqH", "getNotifs", "genNotif"}) {
      Moving side("mover-running", {{how, step}, {"polls", "3"}});
      nixlXferReqH* made = nullptr;
      const std::string at = step;
      const nixl_status_t created =
          side.agent->createXferReq(NIXL_WRITE, side.blocks(1, 64), side.blocks(1, 64), side.name, made);
      EXPECT_EQ(created, at == "prepXfer" ? NIXL_ERR_BACKEND : NIXL_SUCCESS) << how << " " << step;
      if (made != nullptr) {
        const bool runs = at != "postXfer" && at != "checkXfer";
        EXPECT_EQ(run(*side.agent, made), runs ? NIXL_SUCCESS : NIXL_ERR_BACKEND) << how << " " << step;
        EXPECT_EQ(side.agent->releaseXferReq(made), NIXL_SUCCESS) << how << " " << step;
      }
      nixl_notifs_t notifs;
      EXPECT_EQ(side.agent->getNotifs(notifs), at == "getNotifs" ? NIXL_ERR_BACKEND : NIXL_SUCCESS);
      EXPECT_EQ(side.agent->genNotif(side.name, "x"), at == "genNotif" ? NIXL_ERR_BACKEND : NIXL_SUCCESS);
    }
    for (const char* step : {"deregisterMem", "disconnect"}) {
      Moving side("mover-ending", {{how, step}});
      Moving other("mover-ended");
      side.load(other);
      EXPECT_EQ(side.agent->invalidateRemoteMD(other.name), NIXL_SUCCESS);
    }
  }
  EXPECT_EQ(known_alive(), 0);
}

TEST_F(Plugins, ThatFinishLateAreWaitedFor) {
  Moving side("mover-late", {{"polls", "50"}});
  nixlXferReqH* made = request(side, NIXL_WRITE, side.blocks(1, 64), side.blocks(1, 64), side.name);
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(side.agent->getXferStatus(made), NIXL_ERR_NOT_POSTED);
  EXPECT_EQ(side.agent->postXferReq(made), NIXL_IN_PROG);
  EXPECT_EQ(side.agent->postXferReq(made), NIXL_ERR_REPOST_ACTIVE);
  EXPECT_TRUE(eventually([&] { return side.agent->getXferStatus(made) == NIXL_SUCCESS; }));
  EXPECT_EQ(side.agent->getXferStatus(made), NIXL_SUCCESS);  // the engine's second answer is not asked for
  EXPECT_EQ(run(*side.agent, made), NIXL_SUCCESS);           // a run after it
  EXPECT_EQ(side.agent->releaseXferReq(made), NIXL_SUCCESS);
}

TEST_F(Plugins, ThatCompleteARequestTwiceAreHeardOnce) {
  for (const char* polls : {"0", "3"}) {
    SCOPED_TRACE(polls);
    Moving side("mover-twice", {{"polls", polls}, {"ends", "twice"}});
    const int before = counted("mover_asked_after_end");
    nixlXferReqH* made = request(side, NIXL_WRITE, side.blocks(1, 64), side.blocks(1, 64), side.name);
    ASSERT_NE(made, nullptr);
    for (int round = 0; round < 2; ++round) {
      EXPECT_EQ(run(*side.agent, made), NIXL_SUCCESS);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(side.agent->getXferStatus(made), NIXL_SUCCESS);
    }
    EXPECT_EQ(side.agent->releaseXferReq(made), NIXL_SUCCESS);
    EXPECT_EQ(counted("mover_asked_after_end"), before);
  }
}

TEST_F(Plugins, ThatNeverFinishMissTheDeadline) {
  ASSERT_EQ(setenv("TOWLINE_NIXL_TIMEOUT", "200ms", 1), 0);
  Moving side("mover-never", {{"polls", "-1"}});
  ASSERT_EQ(unsetenv("TOWLINE_NIXL_TIMEOUT"), 0);
  nixlXferReqH* made = request(side, NIXL_WRITE, side.blocks(1, 64), side.blocks(1, 64), side.name);
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(run(*side.agent, made), NIXL_ERR_BACKEND);
  EXPECT_NE(towline::nixl::last_error().find("did not end by its deadline"), std::string::npos);
  EXPECT_EQ(side.agent->postXferReq(made), NIXL_ERR_REPOST_ACTIVE);  // the engine still has it
  EXPECT_EQ(side.agent->releaseXferReq(made), NIXL_SUCCESS);         // it can be cancelled
}

#if defined(__SANITIZE_ADDRESS__)
using LeaksOnPurpose = __lsan::ScopedDisabler;
#else
struct LeaksOnPurpose {
  LeaksOnPurpose() {}
};
#endif

TEST_F(Plugins, EndWithRequestsOpen) {
  ASSERT_EQ(setenv("TOWLINE_NIXL_TIMEOUT", "50ms", 1), 0);
  {
    Moving cancels("mover-open", {{"polls", "-1"}});
    Moving stuck("mover-stuck", {{"polls", "-1"}, {"cancel", "no"}});
    for (Moving* side : {&cancels, &stuck}) {
      const LeaksOnPurpose open;  // the agents end with these requests open
      nixlXferReqH* made = request(*side, NIXL_WRITE, side->blocks(1, 64), side->blocks(1, 64), side->name);
      ASSERT_NE(made, nullptr);
      EXPECT_EQ(side->agent->postXferReq(made), NIXL_IN_PROG);
      if (side == &stuck) {
        EXPECT_EQ(side->agent->releaseXferReq(made), NIXL_ERR_REPOST_ACTIVE);
      }
    }
    nixlPluginManager::getInstance().unloadBackendPlugin("MOVER");  // while both use it
    EXPECT_EQ(nixlPluginManager::getInstance().getBackendPlugin("MOVER"), nullptr);
  }
  ASSERT_EQ(unsetenv("TOWLINE_NIXL_TIMEOUT"), 0);
  Moving again("mover-again");
  EXPECT_EQ(again.registering, NIXL_SUCCESS);
}

TEST_F(Plugins, StandBesideTowlinesOwnBackends) {
  Side both("mover-beside", 1 << 16);  // UCX first, then the plugin
  Side peer("mover-peer", 1 << 16);
  nixlBackendH* plugin = nullptr;
  nixlBackendH* of_peer = nullptr;
  ASSERT_EQ(both.agent->createBackend("MOVER", {}, plugin), NIXL_SUCCESS);
  ASSERT_EQ(peer.agent->createBackend("MOVER", {}, of_peer), NIXL_SUCCESS);
  nixl_opt_args_t by_plugin;
  by_plugin.backends = {plugin};
  nixl_opt_args_t of_peers;
  of_peers.backends = {of_peer};
  ASSERT_EQ(both.agent->registerMem(both.registered(), &by_plugin), NIXL_SUCCESS);
  ASSERT_EQ(peer.agent->registerMem(peer.registered(), &of_peers), NIXL_SUCCESS);
  both.load(peer);
  nixlXferReqH* first = request(both, NIXL_READ, both.blocks(1, 64), peer.blocks(1, 64), peer.name);
  nixlXferReqH* second =
      request(both, NIXL_READ, both.blocks(1, 64), peer.blocks(1, 64), peer.name, &by_plugin);
  nixlBackendH* by = nullptr;
  ASSERT_EQ(both.agent->queryXferBackend(first, by), NIXL_SUCCESS);
  EXPECT_EQ(by, both.backend);
  ASSERT_EQ(both.agent->queryXferBackend(second, by), NIXL_SUCCESS);
  EXPECT_EQ(by, plugin);
  EXPECT_EQ(run(*both.agent, first), NIXL_SUCCESS);
  EXPECT_EQ(run(*both.agent, second), NIXL_SUCCESS);
}

TEST_F(Plugins, TakeTheNameOfOneOfTowlinesWhereTheUserSaysSo) {
  const std::string folder = testing::TempDir() + "nixl-preferred";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(PLUGIN_FOLDER "/libplugin_MOVER.so", folder + "/libplugin_UCX.so",
                             std::filesystem::copy_options::overwrite_existing);
  ASSERT_EQ(setenv("NIXL_PLUGIN_DIR", folder.c_str(), 1), 0);
  nixl_mem_list_t kinds;
  nixl_b_params_t params;
  nixlAgent own("name-own", nixlAgentConfig{});
  ASSERT_EQ(own.getPluginParams("UCX", kinds, params), NIXL_SUCCESS);
  EXPECT_TRUE(params.contains("towline_transport"));
  ASSERT_EQ(setenv("TOWLINE_NIXL_PLUGINS", "UCX", 1), 0);
  nixlAgent plugin("name-plugin", nixlAgentConfig{});
  ASSERT_EQ(plugin.getPluginParams("UCX", kinds, params), NIXL_SUCCESS);
  EXPECT_TRUE(params.contains("polls"));
  ASSERT_EQ(unsetenv("TOWLINE_NIXL_PLUGINS"), 0);
  ASSERT_EQ(unsetenv("NIXL_PLUGIN_DIR"), 0);
  nixlPluginManager::getInstance().unloadBackendPlugin("UCX");
}

// Towline as a plugin, as the real NIXL agent would load it; here by the agent that is at hand.
TEST_F(Plugins, TowlineIsOneForTheRealAgent) {
  nixlPluginManager::getInstance().addPluginDirectory(TOWLINE_FOR_NIXL);
  Side here("towline-here", 1 << 16, nixlAgentConfig{}, false);
  auto there = std::make_unique<Side>("towline-there", 1 << 16, nixlAgentConfig{}, false);
  for (Side* side : {&here, there.get()}) {
    ASSERT_EQ(side->agent->createBackend("TOWLINE", {{"timeout_ms", "5000"}}, side->backend), NIXL_SUCCESS)
        << towline::nixl::last_error();
    ASSERT_EQ(side->agent->registerMem(side->registered()), NIXL_SUCCESS);
  }
  here.load(*there);
  here.fill('t');
  nixl_opt_args_t args = with_notif("first");
  nixlXferReqH* made =
      request(here, NIXL_WRITE, here.blocks(16, 256), there->blocks(16, 256), there->name, &args);
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(run(*here.agent, made), NIXL_SUCCESS);
  EXPECT_TRUE(std::equal(here.memory.begin(), here.memory.begin() + 4096, there->memory.begin()));
  args = with_notif("second");
  EXPECT_EQ(run(*here.agent, made, &args), NIXL_SUCCESS);
  std::vector<std::string> texts;
  ASSERT_TRUE(receives(*there->agent, here.name, 2, texts));
  EXPECT_EQ(texts, (std::vector<std::string>{"first", "second"}));
  // Within an agent, with a notification to itself.
  args = with_notif("own");
  nixlXferReqH* own =
      request(here, NIXL_READ, here.blocks(1, 64), here.blocks(1, 64, 4096), here.name, &args);
  ASSERT_NE(own, nullptr);
  EXPECT_EQ(run(*here.agent, own), NIXL_SUCCESS);
  ASSERT_TRUE(receives(*here.agent, here.name, 1, texts));
  EXPECT_EQ(here.agent->genNotif("nobody", "x"), NIXL_ERR_BACKEND);
  args = with_notif(std::string(65537, 'x'));
  EXPECT_EQ(
      here.agent->createXferReq(NIXL_READ, here.blocks(1, 64), there->blocks(1, 64), there->name, own, &args),
      NIXL_ERR_INVALID_PARAM);
  // An agent that takes its memory back may stay, or be about to leave.
  EXPECT_EQ(there->agent->deregisterMem(there->registered()), NIXL_SUCCESS);
  EXPECT_EQ(run(*here.agent, made), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(here.agent->postXferReq(made), NIXL_IN_PROG);
  there.reset();
  EXPECT_TRUE(eventually([&] { return here.agent->getXferStatus(made) != NIXL_IN_PROG; }));
  EXPECT_EQ(here.agent->getXferStatus(made), NIXL_ERR_REMOTE_DISCONNECT);
}

TEST_F(Plugins, TowlinesParametersThatAreWrongAreNamed) {
  struct Case {
    const char* key;
    const char* value;
    const char* named;
  };
  nixlPluginManager::getInstance().addPluginDirectory(TOWLINE_FOR_NIXL);
  for (const Case& wrong : {Case{"timeout_ms", "soon", "timeout_ms is 'soon'"},
                            {"timeout_ms", "-1", "timeout_ms is '-1'"},
                            {"timeout_ms", "5s", "timeout_ms is '5s'"},
                            {"timeout_ms", "18446744073709551615", "timeout_ms is '18446744073709551615'"},
                            {"transports", "none-such", "none-such"},
                            {"listen", "nowhere:-1", "nowhere:-1"},
                            {"config", "tuning.no_such = 1", "tuning.no_such"}}) {
    nixlAgent agent("towline-wrong", nixlAgentConfig{});
    nixlBackendH* backend = nullptr;
    testing::internal::CaptureStderr();
    EXPECT_EQ(agent.createBackend("TOWLINE", {{wrong.key, wrong.value}}, backend), NIXL_ERR_BACKEND)
        << wrong.value;
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(backend, nullptr);
    EXPECT_NE(said.find(wrong.named), std::string::npos) << said;
  }
}

// And tcpx alone, under the name of the plugin that was planned for it.
TEST_F(Plugins, TcpxIsOneForTheRealAgent) {
  nixlPluginManager::getInstance().addPluginDirectory(TOWLINE_FOR_NIXL);
  constexpr std::size_t kBlock = 65536;
  Side here("tcpx-here", 8 * kBlock, nixlAgentConfig{}, false);
  Side there("tcpx-there", 8 * kBlock, nixlAgentConfig{}, false);
  for (Side* side : {&here, &there}) {
    ASSERT_EQ(
        side->agent->createBackend(
            "TCPX", {{"plugins", TOWLINE_TCPX_PLUGIN}, {"source", "emulated"}, {"listen", "127.0.0.1:0"}},
            side->backend),
        NIXL_SUCCESS)
        << towline::nixl::last_error();
    ASSERT_EQ(side->agent->registerMem(side->registered()), NIXL_SUCCESS);
  }
  here.load(there);
  for (const char letter : {'a', 'b', 'c'}) {
    here.fill(letter);
    nixl_opt_args_t args = with_notif("written");
    nixlXferReqH* made =
        request(here, NIXL_WRITE, here.blocks(8, kBlock), there.blocks(8, kBlock), there.name, &args);
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(run(*here.agent, made), NIXL_SUCCESS);
    EXPECT_EQ(here.memory, there.memory);
    EXPECT_EQ(here.agent->releaseXferReq(made), NIXL_SUCCESS);
  }
  nixl_mem_list_t kinds;
  nixl_b_params_t params;
  ASSERT_EQ(here.agent->getPluginParams("TCPX", kinds, params), NIXL_SUCCESS);
  EXPECT_TRUE(params.contains("source"));
}

nixl_status_t make_tcpx(const std::string& agent, const nixl_b_params_t& more) {
  nixl_b_params_t params = {
      {"plugins", TOWLINE_TCPX_PLUGIN}, {"source", "emulated"}, {"listen", "127.0.0.1:0"}};
  for (const auto& [key, value] : more) params[key] = value;
  nixlAgent maker(agent, nixlAgentConfig{});
  nixlBackendH* backend = nullptr;
  return maker.createBackend("TCPX", params, backend);
}

// A parameter that names what does not exist is seen to arrive, and so is a table of the same name in `config`.
TEST_F(Plugins, TcpxsParametersAreSettingsOfTcpx) {
  nixlPluginManager::getInstance().addPluginDirectory(TOWLINE_FOR_NIXL);
  EXPECT_EQ(make_tcpx("a", {{"config", "[tuning.tcpx]\nleast_bytes = \"32KiB\"\n"}}), NIXL_SUCCESS);
  EXPECT_EQ(make_tcpx("b", {{"config", "[tuning.tcpx]\nleast_bytes = \"many\"\n"}}), NIXL_ERR_BACKEND);
  EXPECT_EQ(make_tcpx("c", {{"source", "none"}}), NIXL_ERR_BACKEND);
  EXPECT_EQ(make_tcpx("d", {{"queues", "first"}}), NIXL_ERR_BACKEND);
  EXPECT_EQ(make_tcpx("d", {{"gpus", "some"}}), NIXL_ERR_BACKEND);
  EXPECT_EQ(make_tcpx("e", {{"num_cpus", "4"}, {"in_python", "1"}}), NIXL_SUCCESS);  // of NIXL's plugin UCCL
}

// A port that is taken by another agent is no reason to give up.
TEST_F(Plugins, TcpxTakesTheKnownVariables) {
  nixlPluginManager::getInstance().addPluginDirectory(TOWLINE_FOR_NIXL);
  ASSERT_EQ(setenv("UCCL_TCPX_OOB_PORT", "29517", 1), 0);
  nixlAgent first("first", nixlAgentConfig{});
  nixlAgent second("second", nixlAgentConfig{});
  for (nixlAgent* agent : {&first, &second}) {
    nixlBackendH* backend = nullptr;
    EXPECT_EQ(agent->createBackend(
                  "TCPX", {{"plugins", TOWLINE_TCPX_PLUGIN}, {"source", "emulated"}, {"listen", "127.0.0.1"}},
                  backend),
              NIXL_SUCCESS)
        << towline::nixl::last_error();
  }
  ASSERT_EQ(setenv("UCCL_TCPX_OOB_PORT", "many", 1), 0);
  EXPECT_EQ(make_tcpx("third", {{"listen", ""}}), NIXL_ERR_BACKEND);
  ASSERT_EQ(unsetenv("UCCL_TCPX_OOB_PORT"), 0);
  ASSERT_EQ(setenv("UCCL_TCPX_CHUNK_BYTES", "1", 1), 0);
  EXPECT_EQ(make_tcpx("fourth", {}), NIXL_ERR_BACKEND);
  ASSERT_EQ(unsetenv("UCCL_TCPX_CHUNK_BYTES"), 0);
}

// Not a backend that can move nothing.
TEST_F(Plugins, TcpxWithoutItsPluginIsRefused) {
  nixlPluginManager::getInstance().addPluginDirectory(TOWLINE_FOR_NIXL);
  nixlAgent agent("tcpx-alone", nixlAgentConfig{});
  nixlBackendH* backend = nullptr;
  EXPECT_EQ(agent.createBackend(
                "TCPX", {{"plugins", "/nowhere/libtowline_tcpx.so"}, {"listen", "127.0.0.1:0"}}, backend),
            NIXL_ERR_BACKEND);
}

TEST_F(Plugins, GiveViewsOfMemory) {
  Moving side("mover-views");
  nixlMemViewH view = nullptr;
  ASSERT_EQ(side.agent->prepMemView(side.blocks(3, 64), view), NIXL_SUCCESS) << towline::nixl::last_error();
  ASSERT_NE(view, nullptr);
  EXPECT_EQ(*static_cast<size_t*>(view), 3U);
  side.agent->releaseMemView(view);
  side.agent->releaseMemView(view);  // warned of, and left alone
}

TEST_F(Plugins, MayBeLinkedIn) {
  nixlPluginManager& manager = nixlPluginManager::getInstance();
  EXPECT_TRUE(manager.registerStaticPlugin("LINKED", createStaticMOVERPlugin));
  EXPECT_FALSE(manager.registerStaticPlugin("LINKED", createStaticMOVERPlugin));
  nixlAgent agent("static", nixlAgentConfig{});
  nixlBackendH* backend = nullptr;
  EXPECT_EQ(agent.createBackend("LINKED", {}, backend), NIXL_SUCCESS);
  manager.unloadBackendPlugin("LINKED");
  EXPECT_NE(manager.getBackendPlugin("LINKED"), nullptr);
}

TEST_F(Plugins, ManyThreadsMayUseOne) {
  Moving side("mover-threads", {{"polls", "2"}});
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        nixlXferReqH* made = nullptr;
        if (side.agent->createXferReq(NIXL_WRITE, side.blocks(2, 64), side.blocks(2, 64), side.name, made) !=
                NIXL_SUCCESS ||
            run(*side.agent, made) != NIXL_SUCCESS || side.agent->releaseXferReq(made) != NIXL_SUCCESS)
          ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace compat
