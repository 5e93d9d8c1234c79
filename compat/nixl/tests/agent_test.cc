// An agent's backends, memory, and end.
#include <plugin_manager.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include "support.h"

namespace compat {
namespace {

TEST(Agents, NeedAName) {
  EXPECT_THROW(nixlAgent("", nixlAgentConfig{}), std::invalid_argument);
  EXPECT_THROW(nixlAgent(std::string(256, 'n'), nixlAgentConfig{}), std::invalid_argument);
  EXPECT_THROW(nixlAgent(std::string("a\0b", 3), nixlAgentConfig{}), std::invalid_argument);
}

TEST(Agents, SayWhenTheirPortIsTaken) {
  nixlAgentConfig config(true, true, 0);
  nixlAgent first("port-a", config);
  std::string address;
  ASSERT_EQ(towline::nixl::agent_address(first, address), NIXL_SUCCESS);
  config.listenPort = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  try {
    nixlAgent second("port-b", config);
    ADD_FAILURE() << "two agents listen at " << address;
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string{error.what()}.find(std::to_string(config.listenPort)), std::string::npos)
        << error.what();
  }
}

TEST(Backends, AreWhatIsHere) {
  nixlAgent agent("backends", nixlAgentConfig{});
  std::vector<nixl_backend_t> plugins;
  ASSERT_EQ(agent.getAvailPlugins(plugins), NIXL_SUCCESS);
  EXPECT_NE(std::find(plugins.begin(), plugins.end(), "UCX"), plugins.end());
  nixl_mem_list_t memories;
  nixl_b_params_t parameters;
  for (const nixl_backend_t& plugin : plugins) {
    if (nixlPluginManager::getInstance().knows(plugin)) continue;  // a file that another test made known
    const nixl_status_t loaded = agent.getPluginParams(plugin, memories, parameters);
    EXPECT_EQ(loaded, NIXL_SUCCESS) << plugin;
    EXPECT_NE(std::find(memories.begin(), memories.end(), DRAM_SEG), memories.end()) << plugin;
    nixlBackendH* made = nullptr;
    EXPECT_EQ(agent.createBackend(plugin, parameters, made), NIXL_SUCCESS) << plugin;
    nixlBackendH* second = nullptr;
    EXPECT_EQ(agent.createBackend(plugin, parameters, second), NIXL_ERR_INVALID_PARAM) << plugin;
    EXPECT_EQ(second, nullptr);
  }
  nixlBackendH* backend = nullptr;
  for (const char* absent : {"MOONCAKE", "UCCL", "GPUNETIO", "NO_SUCH_THING"}) {
    if (nixlPluginManager::getInstance().knows(absent)) continue;  // the models of vendors_test.cc
    EXPECT_EQ(std::find(plugins.begin(), plugins.end(), absent), plugins.end()) << absent;
    EXPECT_EQ(agent.getPluginParams(absent, memories, parameters), NIXL_ERR_NOT_FOUND) << absent;
    EXPECT_EQ(agent.createBackend(absent, {}, backend), NIXL_ERR_NOT_FOUND) << absent;
  }
  EXPECT_EQ(agent.getBackendParams(nullptr, memories, parameters), NIXL_ERR_INVALID_PARAM);
}

TEST(Backends, TellNixlsParameters) {
  nixlAgent agent("keys", nixlAgentConfig{});
  nixl_mem_list_t memories;
  nixl_b_params_t parameters;
  ASSERT_EQ(agent.getPluginParams("UCX", memories, parameters), NIXL_SUCCESS);
  EXPECT_EQ(parameters.at("ucx_error_handling_mode"), "peer");
  EXPECT_EQ(parameters.at("num_workers"), "1");
  EXPECT_EQ(parameters.at("ucx_devices"), "");
  if (agent.getPluginParams("POSIX", memories, parameters) != NIXL_SUCCESS) return;  // not usable here
  for (const char* engine : {"use_aio", "use_uring", "use_posix_aio"})
    EXPECT_EQ(parameters.at(engine), "false");
  EXPECT_EQ(parameters.at("ios_pool_size"), "65536");
  EXPECT_EQ(parameters.at("kernel_queue_size"), "256");
}

TEST(Backends, KeepAndCheckTheirParameters) {
  nixlAgent agent("parameters", nixlAgentConfig{});
  nixlBackendH* backend = nullptr;
  EXPECT_EQ(agent.createBackend("UCX", {{"towline_timeout", "soon"}}, backend), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(agent.createBackend("UCX", {{"towline_threads", "99"}}, backend), NIXL_ERR_INVALID_PARAM);
  ASSERT_EQ(agent.createBackend("UCX", {{"num_workers", "2"}, {"towline_timeout", "5s"}}, backend),
            NIXL_SUCCESS);
  nixl_mem_list_t memories;
  nixl_b_params_t parameters;
  ASSERT_EQ(agent.getBackendParams(backend, memories, parameters), NIXL_SUCCESS);
  EXPECT_EQ(parameters["num_workers"], "2");
  EXPECT_EQ(parameters["towline_timeout"], "5s");
  EXPECT_EQ(parameters["towline_threads"], "auto");
}

TEST(Backends, AreNeededForEverythingElse) {
  Side side("bare", 4096, nixlAgentConfig{}, false);
  nixl_notifs_t notifications;
  std::string blob;
  nixlDlistH* list = nullptr;
  EXPECT_EQ(side.agent->registerMem(side.registered()), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(side.agent->getNotifs(notifications), NIXL_ERR_BACKEND);
  EXPECT_EQ(side.agent->getLocalMD(blob), NIXL_ERR_INVALID_PARAM);
  EXPECT_EQ(side.agent->prepXferDlist(side.blocks(1, 64), list), NIXL_ERR_NOT_FOUND);
}

TEST(Backends, OfAnotherAgentAreRefused) {
  Side side("backends-own");
  Side other("backends-other");
  side.load(other);
  nixl_opt_args_t with;
  with.backends = {other.backend};
  EXPECT_EQ(side.agent->registerMem(side.registered(), &with), NIXL_ERR_NOT_FOUND);
  nixlXferReqH* made = nullptr;
  EXPECT_EQ(
      side.agent->createXferReq(NIXL_READ, side.blocks(1, 64), other.blocks(1, 64), other.name, made, &with),
      NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(made, nullptr);
  std::vector<nixl_query_resp_t> answers;
  EXPECT_EQ(side.agent->queryMem(side.registered(), answers, &with), NIXL_ERR_INVALID_PARAM);
  nixl_mem_list_t kinds;
  nixl_b_params_t params;
  EXPECT_EQ(side.agent->getBackendParams(other.backend, kinds, params), NIXL_ERR_INVALID_PARAM);
  EXPECT_NE(towline::nixl::last_error().find("backends-own"), std::string::npos);
}

TEST(Backends, CanBeTiedToOneTransport) {
  Side a("tied-a", 4096, nixlAgentConfig{}, false);
  Side b("tied-b", 4096);
  ASSERT_EQ(a.agent->createBackend("UCX", {{"towline_transport", "tcp"}}, a.backend), NIXL_SUCCESS);
  ASSERT_EQ(a.agent->registerMem(a.registered()), NIXL_SUCCESS);
  a.load(b);
  nixlXferReqH* made = request(a, NIXL_WRITE, a.blocks(1, 64), b.blocks(1, 64), "tied-b");
  ASSERT_NE(made, nullptr);
  std::string route;
  ASSERT_EQ(towline::nixl::xfer_route(made, route), NIXL_SUCCESS);
  EXPECT_NE(route.find("\"backend\":\"tcp\""), std::string::npos) << route;
  EXPECT_EQ(run(*a.agent, made), NIXL_SUCCESS);
}

TEST(Backends, FollowUcxTls) {
  ASSERT_EQ(setenv("UCX_TLS", "tcp", 1), 0);
  Side a("tls-a", 4096);
  Side b("tls-b", 4096);
  ASSERT_EQ(unsetenv("UCX_TLS"), 0);
  a.load(b);
  nixlXferReqH* made = request(a, NIXL_WRITE, a.blocks(1, 64), b.blocks(1, 64), "tls-b");
  ASSERT_NE(made, nullptr);
  std::string route;
  ASSERT_EQ(towline::nixl::xfer_route(made, route), NIXL_SUCCESS);
  EXPECT_NE(route.find("\"backend\":\"tcp\""), std::string::npos) << route;
  EXPECT_EQ(run(*a.agent, made), NIXL_SUCCESS);
  // Within an agent it works too.
  nixlXferReqH* own = request(a, NIXL_WRITE, a.blocks(1, 64), a.blocks(1, 64), "tls-a");
  ASSERT_NE(own, nullptr);
  EXPECT_EQ(run(*a.agent, own), NIXL_SUCCESS);
}

TEST(Memory, IsRegisteredWholeOrNotAtAll) {
  Side side("memory", 8192);
  nixl_reg_dlist_t list(DRAM_SEG);
  list.addDesc(nixlBlobDesc(side.address(), 4096, 0, ""));
  list.addDesc(nixlBlobDesc(side.address(), 0, 0, ""));  // nothing
  EXPECT_EQ(side.agent->registerMem(list), NIXL_ERR_BACKEND);
  list.remDesc(1);
  EXPECT_EQ(side.agent->deregisterMem(list), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(side.agent->registerMem(list), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->deregisterMem(list), NIXL_SUCCESS);
  EXPECT_EQ(side.agent->deregisterMem(list), NIXL_ERR_NOT_FOUND);
  nixl_reg_dlist_t gpu(VRAM_SEG);
  gpu.addDesc(nixlBlobDesc(side.address(), 4096, 0, ""));
  EXPECT_LT(side.agent->registerMem(gpu), 0);  // no backend serves it, or none finds it on a GPU
}

TEST(Memory, ThatIsGoneIsNotReachedAnyMore) {
  Side a("gone-a");
  Side b("gone-b");
  a.load(b);
  nixlDlistH* there = nullptr;
  nixlDlistH* here = nullptr;
  ASSERT_EQ(a.agent->prepXferDlist("gone-b", b.blocks(1, 64), there), NIXL_SUCCESS);
  ASSERT_EQ(a.agent->prepXferDlist(a.blocks(1, 64), here), NIXL_SUCCESS);
  nixlXferReqH* made = nullptr;
  ASSERT_EQ(a.agent->makeXferReq(NIXL_WRITE, here, {0}, there, {0}, made), NIXL_SUCCESS);
  ASSERT_EQ(run(*a.agent, made), NIXL_SUCCESS);
  ASSERT_EQ(b.agent->deregisterMem(b.registered()), NIXL_SUCCESS);
  std::fill(b.memory.begin(), b.memory.end(), 'B');
  EXPECT_LT(a.agent->postXferReq(made), 0);
  EXPECT_LT(a.agent->getXferStatus(made), 0);
  nixlXferReqH* late = nullptr;
  EXPECT_LT(a.agent->makeXferReq(NIXL_WRITE, here, {0}, there, {0}, late), 0);
  EXPECT_EQ(late, nullptr);
  EXPECT_EQ(b.memory[0], 'B');
}

TEST(Memory, ThatThisAgentHasDeregisteredIsNotFound) {
  Side a("gone-here-a");
  Side b("gone-here-b");
  a.load(b);
  nixlDlistH* there = nullptr;
  nixlDlistH* here = nullptr;
  ASSERT_EQ(a.agent->prepXferDlist("gone-here-b", b.blocks(1, 64), there), NIXL_SUCCESS);
  ASSERT_EQ(a.agent->prepXferDlist(a.blocks(1, 64), here), NIXL_SUCCESS);
  nixlXferReqH* made = nullptr;
  ASSERT_EQ(a.agent->makeXferReq(NIXL_READ, here, {0}, there, {0}, made), NIXL_SUCCESS);
  ASSERT_EQ(run(*a.agent, made), NIXL_SUCCESS);
  ASSERT_EQ(a.agent->deregisterMem(a.registered()), NIXL_SUCCESS);
  EXPECT_EQ(a.agent->postXferReq(made), NIXL_ERR_NOT_FOUND);
  nixlXferReqH* late = nullptr;
  EXPECT_EQ(a.agent->makeXferReq(NIXL_READ, here, {0}, there, {0}, late), NIXL_ERR_NOT_FOUND);
  EXPECT_EQ(late, nullptr);
}

// Page-aligned memory as an application has it: not shared with anybody.
struct Pages {
  Pages() : at(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { munmap(at, kBytes); }
  [[nodiscard]] nixl_reg_dlist_t all() const {
    nixl_reg_dlist_t list(DRAM_SEG);
    list.addDesc(nixlBlobDesc(reinterpret_cast<uintptr_t>(at), kBytes, 0, ""));
    return list;
  }
  static constexpr size_t kBytes = 1 << 20;
  void* at;
};

TEST(Memory, IsSharedInPlaceWhenAsked) {
  Pages here;
  Pages there;
  std::memset(here.at, 'h', Pages::kBytes);
  std::memset(there.at, 't', Pages::kBytes);
  setenv("TOWLINE_NIXL_SHARE", "1", 1);
  setenv("TOWLINE_NIXL_BACKENDS", "shm", 1);
  Side a("share-a", 4096);
  Side b("share-b", 4096);
  unsetenv("TOWLINE_NIXL_SHARE");
  unsetenv("TOWLINE_NIXL_BACKENDS");
  ASSERT_EQ(a.agent->registerMem(here.all()), NIXL_SUCCESS);
  ASSERT_EQ(b.agent->registerMem(there.all()), NIXL_SUCCESS);
  EXPECT_EQ(static_cast<char*>(there.at)[4096], 't');  // what was in it stays
  a.load(b);
  nixlXferReqH* made = request(a, NIXL_WRITE, here.all().trim(), there.all().trim(), "share-b");
  ASSERT_NE(made, nullptr);
  std::string route;
  ASSERT_EQ(towline::nixl::xfer_route(made, route), NIXL_SUCCESS);
  EXPECT_NE(route.find("mapped"), std::string::npos) << route;
  ASSERT_EQ(run(*a.agent, made), NIXL_SUCCESS);
  EXPECT_EQ(std::memcmp(here.at, there.at, Pages::kBytes), 0);
}

TEST(Memory, ViewsForGpusAreNotSupported) {
  Side side("views");
  nixlMemViewH view = &side;
  EXPECT_EQ(side.agent->prepMemView(side.blocks(1, 64), view), NIXL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(view, nullptr);
  nixl_remote_dlist_t remote(DRAM_SEG);
  remote.addDesc(nixlRemoteDesc(side.address(), 64, 0, "views"));
  EXPECT_EQ(side.agent->prepMemView(remote, view), NIXL_ERR_NOT_SUPPORTED);
  side.agent->releaseMemView(nullptr);
}

TEST(Memory, OfFilesIsAskedAbout) {
  Side side("files", 4096);
  const std::string path = testing::TempDir() + "compat_nixl_query.txt";
  std::ofstream(path) << "twelve bytes";
  nixl_reg_dlist_t files(FILE_SEG);
  files.addDesc(nixlBlobDesc(0, 0, 0, path));
  files.addDesc(nixlBlobDesc(0, 0, 0, path + ".not"));
  files.addDesc(nixlBlobDesc(0, 0, 0, ""));
  std::vector<nixl_query_resp_t> found;
  nixl_opt_args_t args;
  EXPECT_EQ(side.agent->queryMem(files, found, &args), NIXL_ERR_INVALID_PARAM);
  args.backends = {side.backend};
  ASSERT_EQ(side.agent->queryMem(files, found, &args), NIXL_SUCCESS);
  ASSERT_EQ(found.size(), 3U);
  ASSERT_TRUE(found[0].has_value());
  EXPECT_EQ(found[0]->at("size"), "12");
  EXPECT_FALSE(found[1].has_value());
  EXPECT_FALSE(found[2].has_value());
  EXPECT_EQ(side.agent->queryMem(side.registered(), found, &args), NIXL_ERR_NOT_SUPPORTED);
  std::remove(path.c_str());
}

TEST(Agents, EndWithRequestsListsAndPeersStillThere) {
  auto a = std::make_unique<Side>("ending-a", 64 << 20);
  auto b = std::make_unique<Side>("ending-b", 64 << 20);
  a->load(*b);
  b->load(*a);
  nixlDlistH* list = nullptr;
  ASSERT_EQ(a->agent->prepXferDlist("ending-b", b->blocks(4, 64), list), NIXL_SUCCESS);
  // The first half goes forth and the second back, so that the two never write the same bytes.
  const auto second = [](const Side& side) {
    nixl_xfer_dlist_t half(DRAM_SEG);
    half.emplace(side.address() + (32 << 20), 4096, uint64_t{0});
    return half;
  };
  nixlXferReqH* forth = request(*a, NIXL_WRITE, a->blocks(1, 32 << 20), b->blocks(1, 32 << 20), "ending-b");
  nixlXferReqH* back = request(*b, NIXL_READ, second(*b), second(*a), "ending-a");
  ASSERT_GE(a->agent->postXferReq(forth), 0);
  ASSERT_GE(b->agent->postXferReq(back), 0);
  a->agent.reset();  // with a transfer under way
  eventually([&] { return b->agent->getXferStatus(back) != NIXL_IN_PROG; });
  EXPECT_LT(b->agent->postXferReq(back) == NIXL_IN_PROG
                ? (eventually([&] { return b->agent->getXferStatus(back) != NIXL_IN_PROG; }),
                   b->agent->getXferStatus(back))
                : b->agent->getXferStatus(back),
            0);
}

}  // namespace
}  // namespace compat
