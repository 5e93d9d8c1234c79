// NIXL's names of plugins that Towline has nothing of its own for: what is missing is named, and a plugin that is there is
// used with its own parameters and kinds of memory.
#include <plugin_manager.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "support.h"

namespace compat {
namespace {

namespace fs = std::filesystem;

struct Vendor {
  const char* name;
  const char* library;  // that NIXL's plugin needs
  nixl_mem_list_t kinds;
  nixl_b_params_t parameters;
};

const std::vector<Vendor>& vendors() {
  static const std::vector<Vendor> all = {
      {"MOONCAKE", "libtransfer_engine.so", {DRAM_SEG, VRAM_SEG}, {{"mooncake_devices", ""}}},
      {"UCCL", "libuccl_p2p.so", {DRAM_SEG, VRAM_SEG}, {{"in_python", "true"}, {"num_cpus", "4"}}},
      {"GPUNETIO",
       "libdoca_gpunetio.so",
       {DRAM_SEG, VRAM_SEG},
       {{"network_devices", ""}, {"oob_interface", ""}, {"gpu_devices", ""}, {"cuda_streams", ""}}},
      {"GUSLI",
       "libgusli_clnt.so",
       {BLK_SEG, DRAM_SEG},
       {{"client_name", ""}, {"max_num_simultaneous_requests", "256"}, {"config_file", ""}}},
      {"INFINIA", "libred_client.so.2", {DRAM_SEG, VRAM_SEG, OBJ_SEG}, {}},
  };
  return all;
}

std::vector<std::string> listed(nixlAgent& agent) {
  std::vector<nixl_backend_t> names;
  EXPECT_EQ(agent.getAvailPlugins(names), NIXL_SUCCESS);
  return names;
}

// A folder with all of them, in which GPUNETIO's library lies as well.
class Vendors : public testing::Test {
 protected:
  Vendors() {
    fs::remove_all(folder_);
    fs::copy(VENDORS_FOLDER, folder_);
    fs::copy(DOCA_LIBRARY, folder_);
    setenv("NIXL_PLUGIN_DIR", folder_.c_str(), 1);
  }
  ~Vendors() override {
    unsetenv("NIXL_PLUGIN_DIR");
    fs::remove_all(folder_);
  }

 private:
  const std::string folder_ = testing::TempDir() + "compat_nixl_vendors_" + std::to_string(getpid());
};

// The manager of a process remembers the names that it has seen: absence is looked at in one that has seen none.
TEST(NoVendors, AreNotListedAndTheErrorNamesTheFileTheFoldersAndTheLibrary) {
  const std::string folder = testing::TempDir() + "compat_nixl_no_vendors_" + std::to_string(getpid());
  fs::create_directories(folder);
  Child child("no-vendors", {"NIXL_PLUGIN_DIR=" + folder, "COMPAT_BACKEND=UCX"});
  const std::string names = from_hex(child.ask("plugins"));
  for (const Vendor& vendor : vendors()) {
    EXPECT_EQ(names.find(vendor.name), std::string::npos) << names;
    const std::string why = from_hex(child.ask(std::string("create ") + vendor.name));
    for (const std::string& part : {std::string("NOT_FOUND"), "libplugin_" + std::string(vendor.name) + ".so",
                                    folder, std::string("NIXL_PLUGIN_DIR"), std::string(vendor.library)})
      EXPECT_NE(why.find(part), std::string::npos) << part << ": " << why;
  }
  fs::remove_all(folder);
}

TEST(NoVendors, OfAPluginWhoseLibraryIsMissingTheErrorNamesItAndTheFolders) {
  Child child("no-library", {"NIXL_PLUGIN_DIR=" VENDORS_FOLDER, "COMPAT_BACKEND=UCX"});
  const std::string why = from_hex(child.ask("create GPUNETIO"));
  for (const char* part :
       {"NOT_FOUND", "libplugin_GPUNETIO.so needs libdoca_gpunetio.so", "LD_LIBRARY_PATH", VENDORS_FOLDER})
    EXPECT_NE(why.find(part), std::string::npos) << part << ": " << why;
}

TEST_F(Vendors, SayWhatTheyTakeAndServe) {
  nixlAgent agent("vendors", nixlAgentConfig{});
  const std::vector<std::string> names = listed(agent);
  for (const Vendor& vendor : vendors()) {
    SCOPED_TRACE(vendor.name);
    EXPECT_EQ(std::ranges::count(names, vendor.name), 1);
    nixl_mem_list_t kinds;
    nixl_b_params_t parameters;
    ASSERT_EQ(agent.getPluginParams(vendor.name, kinds, parameters), NIXL_SUCCESS)
        << towline::nixl::last_error();
    EXPECT_EQ(kinds, vendor.kinds);
    EXPECT_EQ(parameters, vendor.parameters);
    nixlBackendH* backend = nullptr;
    ASSERT_EQ(agent.createBackend(vendor.name, {}, backend), NIXL_SUCCESS) << towline::nixl::last_error();
    ASSERT_EQ(agent.getBackendParams(backend, kinds, parameters), NIXL_SUCCESS);
    EXPECT_EQ(kinds, vendor.kinds);
  }
}

TEST_F(Vendors, OfNetworksReachOtherAgents) {
  for (const char* name : {"MOONCAKE", "UCCL", "GPUNETIO"}) {
    SCOPED_TRACE(name);
    Side here(std::string("here-") + name, 1 << 16, nixlAgentConfig{}, false);
    Side there(std::string("there-") + name, 1 << 16, nixlAgentConfig{}, false);
    for (Side* side : {&here, &there}) {
      ASSERT_EQ(side->agent->createBackend(name, {}, side->backend), NIXL_SUCCESS)
          << towline::nixl::last_error();
      ASSERT_EQ(side->agent->registerMem(side->registered()), NIXL_SUCCESS) << towline::nixl::last_error();
    }
    here.load(there);
    here.fill('v');
    const nixl_opt_args_t args = with_notif("moved");
    nixlXferReqH* made =
        request(here, NIXL_WRITE, here.blocks(4, 4096), there.blocks(4, 4096), there.name, &args);
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(run(*here.agent, made), NIXL_SUCCESS);
    EXPECT_TRUE(std::equal(here.memory.begin(), here.memory.begin() + 4 * 4096, there.memory.begin()));
    std::vector<std::string> texts;
    EXPECT_TRUE(receives(*there.agent, here.name, 1, texts));
    EXPECT_EQ(here.agent->releaseXferReq(made), NIXL_SUCCESS);
  }
}

// Memory there is registered for a device: its number is the memory's as well.
TEST_F(Vendors, OfBlocksAndObjectsKeepThem) {
  struct Case {
    const char* name;
    nixl_mem_t kind;
    nixl_b_params_t parameters;
    std::string key;
  };
  const Case kCases[] = {
      {"GUSLI", BLK_SEG, {{"config_file", "# Config file\nversion=1\n11 F W N ./store0.bin sec=0x3\n"}}, ""},
      {"INFINIA", OBJ_SEG, {}, "a key"}};
  constexpr uint64_t kDevice = 11;
  for (const Case& kept : kCases) {
    SCOPED_TRACE(kept.name);
    Side side(kept.name, 1 << 16, nixlAgentConfig{}, false);
    ASSERT_EQ(side.agent->createBackend(kept.name, kept.parameters, side.backend), NIXL_SUCCESS)
        << towline::nixl::last_error();
    nixl_reg_dlist_t memory(DRAM_SEG);
    memory.addDesc(nixlBlobDesc(side.address(), side.memory.size(), kDevice, ""));
    nixl_reg_dlist_t stored(kept.kind);
    stored.addDesc(nixlBlobDesc(0, 1 << 16, kDevice, kept.key));
    ASSERT_EQ(side.agent->registerMem(memory), NIXL_SUCCESS) << towline::nixl::last_error();
    ASSERT_EQ(side.agent->registerMem(stored), NIXL_SUCCESS) << towline::nixl::last_error();
    nixl_xfer_dlist_t here(DRAM_SEG);
    nixl_xfer_dlist_t there(kept.kind);
    for (size_t i = 0; i < 8; ++i) {
      here.emplace(side.address() + i * 4096, size_t{4096}, kDevice);
      there.emplace((7 - i) * 4096, size_t{4096}, kDevice);
    }
    side.fill('s');
    const std::vector<char> before = side.memory;
    nixlXferReqH* write = request(side, NIXL_WRITE, here, there, side.name);
    ASSERT_NE(write, nullptr);
    EXPECT_EQ(run(*side.agent, write), NIXL_SUCCESS);
    std::ranges::fill(side.memory, '\0');
    nixlXferReqH* read = request(side, NIXL_READ, here, there, side.name);
    ASSERT_NE(read, nullptr);
    EXPECT_EQ(run(*side.agent, read), NIXL_SUCCESS);
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + 8 * 4096, side.memory.begin()));
    EXPECT_EQ(side.agent->releaseXferReq(write), NIXL_SUCCESS);
    EXPECT_EQ(side.agent->releaseXferReq(read), NIXL_SUCCESS);
  }
}

TEST_F(Vendors, RefuseWrongParametersAndUnknownDevices) {
  nixlAgent agent("refused", nixlAgentConfig{});
  nixlBackendH* backend = nullptr;
  EXPECT_EQ(agent.createBackend("GUSLI", {{"max_num_simultaneous_requests", "0"}}, backend),
            NIXL_ERR_BACKEND);
  EXPECT_NE(towline::nixl::last_error().find("GUSLI"), std::string::npos) << towline::nixl::last_error();
  ASSERT_EQ(agent.createBackend("GUSLI", {{"config_file", "version=1\n11 F W N ./x sec=0x3\n"}}, backend),
            NIXL_SUCCESS)
      << towline::nixl::last_error();
  nixl_reg_dlist_t device(BLK_SEG);
  device.addDesc(nixlBlobDesc(0, 4096, 12, ""));
  EXPECT_LT(agent.registerMem(device), 0);
}

}  // namespace
}  // namespace compat
