// Plugins under NIXL's names that Towline has nothing of its own for, on bad days: of another version, with missing symbols, failing
// at each step, late, never ending, ending twice, unloaded with requests open, full and cut short. The plugins are models
// (plugins/), which fail as their parameters say.
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include <dlfcn.h>
#include <plugin_manager.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "support.h"

namespace compat {
namespace {

namespace fs = std::filesystem;

struct FaultyVendor {
  const char* name;
  std::optional<nixl_mem_t> stores;  // none: it reaches memory
  nixl_b_params_t parameters{};
};

constexpr uint64_t kFaultyDevice = 11;

class VendorFaults : public testing::TestWithParam<FaultyVendor> {
 protected:
  // One folder for the process: a manager keeps the path of each name that it has seen.
  static void SetUpTestSuite() {
    fs::remove_all(folder());
    fs::copy(VENDORS_FOLDER, folder());
    fs::copy(DOCA_LIBRARY, folder());
  }
  static void TearDownTestSuite() { fs::remove_all(folder()); }
  // NOLINTBEGIN(concurrency-mt-unsafe): no agent lives
  void SetUp() override { ::setenv("NIXL_PLUGIN_DIR", folder().c_str(), 1); }
  void TearDown() override {
    ::unsetenv("NIXL_PLUGIN_DIR");
    ::unsetenv("TOWLINE_NIXL_TIMEOUT");
  }
  // NOLINTEND(concurrency-mt-unsafe)
  static std::string folder() {
    return testing::TempDir() + "compat_nixl_vendor_faults_" + std::to_string(getpid());
  }
  // Of the plugin: how many of an agent's objects it holds, and how often a request was asked for after its end.
  static int counted(const char* what) {
    void* const library =
        dlopen((folder() + "/libplugin_" + GetParam().name + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(library, nullptr) << dlerror();  // NOLINT(concurrency-mt-unsafe)
    if (library == nullptr) return -1;
    const auto count = reinterpret_cast<int (*)()>(dlsym(library, what));
    const int number = count == nullptr ? -1 : count();
    dlclose(library);
    return number;
  }
  static int alive() { return counted("mover_known_alive"); }
};

// An agent whose only backend is the vendor's, with memory and what the vendor stores.
struct UsedVendor : Side {
  explicit UsedVendor(const FaultyVendor& vendor, nixl_b_params_t parameters = {})
      : Side(std::string("used-") + vendor.name, 1 << 16, nixlAgentConfig{}, false), vendor_(vendor) {
    parameters.insert(vendor.parameters.begin(), vendor.parameters.end());
    created = agent->createBackend(vendor.name, parameters, backend);
    if (created != NIXL_SUCCESS) return;
    nixl_reg_dlist_t mine(DRAM_SEG);
    mine.addDesc(nixlBlobDesc(address(), memory.size(), vendor.stores == BLK_SEG ? kFaultyDevice : 0, ""));
    registering = agent->registerMem(mine);
    if (!vendor.stores || registering != NIXL_SUCCESS) return;
    nixl_reg_dlist_t stored(*vendor.stores);
    stored.addDesc(nixlBlobDesc(0, 1 << 16, kFaultyDevice, vendor.stores == OBJ_SEG ? "a key" : ""));
    registering = agent->registerMem(stored);
  }
  [[nodiscard]] nixl_xfer_dlist_t here(size_t count) const {
    nixl_xfer_dlist_t list(DRAM_SEG);
    for (size_t i = 0; i < count; ++i)
      list.emplace(address() + i * 4096, size_t{4096},
                   vendor_.stores == BLK_SEG ? kFaultyDevice : uint64_t{0});
    return list;
  }
  [[nodiscard]] nixl_xfer_dlist_t there(size_t count) const {
    if (!vendor_.stores) {  // the memory's second half
      nixl_xfer_dlist_t list(DRAM_SEG);
      for (size_t i = 0; i < count; ++i) list.emplace(address() + (8 + i) * 4096, size_t{4096}, uint64_t{0});
      return list;
    }
    nixl_xfer_dlist_t list(*vendor_.stores);
    for (size_t i = 0; i < count; ++i) list.emplace(i * 4096, size_t{4096}, kFaultyDevice);
    return list;
  }
  nixlXferReqH* make(nixl_xfer_op_t op = NIXL_WRITE, size_t count = 1) {
    return request(*this, op, here(count), there(count), name);
  }

  nixl_status_t created = NIXL_ERR_UNKNOWN;
  nixl_status_t registering = NIXL_ERR_UNKNOWN;

 private:
  const FaultyVendor vendor_;
};

const FaultyVendor kFaultyNetworks[] = {{"MOONCAKE", {}}, {"UCCL", {}}, {"GPUNETIO", {}}};
const FaultyVendor kFaultyStores[] = {
    {"GUSLI", BLK_SEG, {{"config_file", "# Config file\nversion=1\n11 F W N ./x.bin sec=0x3\n"}}},
    {"INFINIA", OBJ_SEG}};

std::string faulty_name(const testing::TestParamInfo<FaultyVendor>& tested) { return tested.param.name; }

INSTANTIATE_TEST_SUITE_P(Networks, VendorFaults, testing::ValuesIn(kFaultyNetworks), faulty_name);
INSTANTIATE_TEST_SUITE_P(Stores, VendorFaults, testing::ValuesIn(kFaultyStores), faulty_name);

class VendorStoreFaults : public VendorFaults {};
INSTANTIATE_TEST_SUITE_P(Stores, VendorStoreFaults, testing::ValuesIn(kFaultyStores), faulty_name);

// In a process that has not seen the name before.
TEST_P(VendorFaults, OfAnotherVersionOrWithoutASymbolSayWhy) {
  for (const auto& [broken, why] :
       {std::pair{"OLD", "is of plugin version 0, and this agent takes version 1"},
        {"NOINIT", "has no function nixl_plugin_init"},
        {"THROWS", "nixl_plugin_init failed"},
        {"BADSYMBOL", "is_not_defined_anywhere"}}) {
    SCOPED_TRACE(broken);
    const std::string mine = testing::TempDir() + "compat_nixl_broken_" + std::to_string(getpid());
    fs::remove_all(mine);
    fs::create_directories(mine);
    fs::copy_file(std::string(PLUGIN_FOLDER "/libplugin_") + broken + ".so",
                  mine + "/libplugin_" + GetParam().name + ".so");
    Child child("broken", {"NIXL_PLUGIN_DIR=" + mine, "COMPAT_BACKEND=UCX"});
    const std::string text = from_hex(child.ask(std::string("create ") + GetParam().name));
    EXPECT_NE(text.find("NOT_FOUND"), std::string::npos) << text;
    EXPECT_NE(text.find(why), std::string::npos) << text;
    fs::remove_all(mine);
  }
}

TEST_P(VendorFaults, FailingAtAnyStepIsAnErrorAndLeavesNothing) {
  const int before = alive();
  for (const char* how : {"fail", "throw"}) {
    for (const char* step : {"constructor", "connect"}) {
      const UsedVendor used(GetParam(), {{how, step}});
      EXPECT_EQ(used.created, NIXL_ERR_BACKEND) << how << " " << step;
      EXPECT_EQ(used.backend, nullptr) << how << " " << step;
    }
    for (const char* step : {"registerMem", "loadLocalMD"}) {
      const UsedVendor used(GetParam(), {{how, step}});
      EXPECT_EQ(used.registering, NIXL_ERR_BACKEND) << how << " " << step;
    }
    for (const char* step : {"prepXfer", "postXfer", "checkXfer", "releaseReqH"}) {
      UsedVendor used(GetParam(), {{how, step}, {"polls", "3"}});
      const std::string at = step;
      nixlXferReqH* made = nullptr;
      EXPECT_EQ(used.agent->createXferReq(NIXL_WRITE, used.here(1), used.there(1), used.name, made),
                at == "prepXfer" ? NIXL_ERR_BACKEND : NIXL_SUCCESS)
          << how << " " << step;
      if (made == nullptr) continue;
      const bool runs = at == "releaseReqH";
      EXPECT_EQ(run(*used.agent, made), runs ? NIXL_SUCCESS : NIXL_ERR_BACKEND) << how << " " << step;
      EXPECT_EQ(used.agent->releaseXferReq(made), NIXL_SUCCESS) << how << " " << step;
    }
    const UsedVendor used(GetParam(), {{how, "deregisterMem"}});
    EXPECT_EQ(used.registering, NIXL_SUCCESS) << how;
  }
  EXPECT_EQ(alive(), before);
}

TEST_P(VendorFaults, ThatFinishLateAreWaitedForAndHeardOnce) {
  for (const nixl_b_params_t& ends : {nixl_b_params_t{}, nixl_b_params_t{{"ends", "twice"}}}) {
    nixl_b_params_t parameters = ends;
    parameters["polls"] = "50";
    UsedVendor used(GetParam(), parameters);
    const int before = counted("mover_asked_after_end");
    nixlXferReqH* made = used.make();
    ASSERT_NE(made, nullptr);
    for (int round = 0; round < 2; ++round) {
      EXPECT_EQ(used.agent->postXferReq(made), NIXL_IN_PROG);
      EXPECT_EQ(used.agent->postXferReq(made), NIXL_ERR_REPOST_ACTIVE);
      EXPECT_TRUE(eventually([&] { return used.agent->getXferStatus(made) != NIXL_IN_PROG; }));
      for (int i = 0; i < 3; ++i) EXPECT_EQ(used.agent->getXferStatus(made), NIXL_SUCCESS);
    }
    EXPECT_EQ(used.agent->releaseXferReq(made), NIXL_SUCCESS);
    EXPECT_EQ(counted("mover_asked_after_end"), before);
  }
}

TEST_P(VendorFaults, ThatNeverFinishMissTheDeadlineAndTheNextAgentWorks) {
  ASSERT_EQ(::setenv("TOWLINE_NIXL_TIMEOUT", "200ms", 1), 0);  // NOLINT(concurrency-mt-unsafe)
  {
    UsedVendor used(GetParam(), {{"polls", "-1"}});
    nixlXferReqH* made = used.make();
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(run(*used.agent, made), NIXL_ERR_BACKEND);
    EXPECT_NE(towline::nixl::last_error().find("did not end by its deadline"), std::string::npos)
        << towline::nixl::last_error();
    EXPECT_EQ(used.agent->postXferReq(made), NIXL_ERR_REPOST_ACTIVE) << "the engine still has it";
    EXPECT_EQ(used.agent->releaseXferReq(made), NIXL_SUCCESS);
  }
  UsedVendor next(GetParam());
  nixlXferReqH* made = next.make();
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(run(*next.agent, made), NIXL_SUCCESS) << towline::nixl::last_error();
  EXPECT_EQ(next.agent->releaseXferReq(made), NIXL_SUCCESS);
}

#if defined(__SANITIZE_ADDRESS__)
using LeftOpenOnPurpose = __lsan::ScopedDisabler;
#else
struct LeftOpenOnPurpose {
  LeftOpenOnPurpose() {}
};
#endif

TEST_P(VendorFaults, AreUnloadedWithRequestsOpenOnceTheAgentsEnd) {
  ASSERT_EQ(::setenv("TOWLINE_NIXL_TIMEOUT", "50ms", 1), 0);  // NOLINT(concurrency-mt-unsafe)
  {
    UsedVendor cancels(GetParam(), {{"polls", "-1"}});
    UsedVendor stuck(GetParam(), {{"polls", "-1"}, {"cancel", "no"}});
    for (UsedVendor* used : {&cancels, &stuck}) {
      const LeftOpenOnPurpose open;  // the agents end with these requests open
      nixlXferReqH* made = used->make();
      ASSERT_NE(made, nullptr);
      EXPECT_EQ(used->agent->postXferReq(made), NIXL_IN_PROG);
      if (used == &stuck) {
        EXPECT_EQ(used->agent->releaseXferReq(made), NIXL_ERR_REPOST_ACTIVE);
      }
    }
    nixlPluginManager::getInstance().unloadBackendPlugin(GetParam().name);  // while both use it
    EXPECT_EQ(nixlPluginManager::getInstance().getBackendPlugin(GetParam().name), nullptr);
  }
  ASSERT_EQ(::unsetenv("TOWLINE_NIXL_TIMEOUT"), 0);  // NOLINT(concurrency-mt-unsafe)
  const UsedVendor again(GetParam());
  EXPECT_EQ(again.registering, NIXL_SUCCESS) << towline::nixl::last_error();
}

TEST_P(VendorFaults, RefuseAParameterThatIsWrongAndGetThoseThatNobodyKnows) {
  const UsedVendor wrong(GetParam(), {{"polls", "many"}});
  EXPECT_EQ(wrong.created, NIXL_ERR_BACKEND);
  EXPECT_NE(towline::nixl::last_error().find(GetParam().name), std::string::npos)
      << towline::nixl::last_error();
  const UsedVendor unknown(GetParam(), {{"nobody_knows", "x"}});
  ASSERT_EQ(unknown.created, NIXL_SUCCESS) << towline::nixl::last_error();
  nixl_mem_list_t kinds;
  nixl_b_params_t parameters;
  ASSERT_EQ(unknown.agent->getBackendParams(unknown.backend, kinds, parameters), NIXL_SUCCESS);
  EXPECT_EQ(parameters["nobody_knows"], "x");
}

TEST_P(VendorStoreFaults, WithoutRoomOrCutShortAreAnErrorOfThatRequestOnly) {
  UsedVendor used(GetParam(), {{"full", "16384"}});
  used.fill('v');
  nixlXferReqH* fits = used.make(NIXL_WRITE, 4);
  nixlXferReqH* does_not = used.make(NIXL_WRITE, 8);
  nixlXferReqH* past_the_end = used.make(NIXL_READ, 8);
  EXPECT_EQ(run(*used.agent, does_not), NIXL_ERR_BACKEND);
  EXPECT_EQ(run(*used.agent, fits), NIXL_SUCCESS) << towline::nixl::last_error();
  EXPECT_EQ(run(*used.agent, past_the_end), NIXL_ERR_BACKEND);
  for (nixlXferReqH* made : {fits, does_not, past_the_end})
    EXPECT_EQ(used.agent->releaseXferReq(made), NIXL_SUCCESS);
}

}  // namespace
}  // namespace compat
