// Plugins of the names GUSLI and INFINIA, for the tests: their parameters and kinds of memory are those of NIXL's plugins,
// and what is stored lies in the engine's memory. GUSLI's takes block devices that its `config_file` names, and memory
// that is registered for one of them; INFINIA's takes objects by their key.
#include <backend/backend_plugin.h>
#include <common/backend.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>
#include <stdexcept>
#include <vector>

#ifdef STORE_GUSLI
#define STORE_NAME "GUSLI"
constexpr nixl_mem_t kStored = BLK_SEG;
const nixl_mem_list_t kKinds = {BLK_SEG, DRAM_SEG};
const nixl_b_params_t kParameters = {
    {"client_name", ""}, {"max_num_simultaneous_requests", "256"}, {"config_file", ""}};
#else
#define STORE_NAME "INFINIA"
constexpr nixl_mem_t kStored = OBJ_SEG;
const nixl_mem_list_t kKinds = {DRAM_SEG, VRAM_SEG, OBJ_SEG};
const nixl_b_params_t kParameters = {};
#endif

namespace {

constexpr size_t kDeviceBytes = 1 << 20;

struct Known final : nixlBackendMD {
  Known() : nixlBackendMD(true) {}
  std::string key;
  nixl_mem_t kind = DRAM_SEG;
};

struct Request final : nixlBackendReqH {
  bool posted = false;
};

class Store final : public nixlBackendEngine {
 public:
  explicit Store(const nixlBackendInitParams* init) : nixlBackendEngine(init) {
    if (nixl::getBackendParamDefaulted(init->customParams, "max_num_simultaneous_requests", 256U) == 0)
      throw std::runtime_error("max_num_simultaneous_requests is 0");
    std::string config;
    (void)getInitParam("config_file", config);
    std::istringstream lines(config);
    for (std::string line; std::getline(lines, line);)
      if (std::isdigit(static_cast<unsigned char>(line[0])) != 0)
        stored_[line.substr(0, line.find(' '))].resize(kDeviceBytes);
  }

  bool supportsRemote() const override { return false; }
  bool supportsLocal() const override { return true; }
  bool supportsNotif() const override { return false; }
  nixl_mem_list_t getSupportedMems() const override { return kKinds; }

  nixl_status_t registerMem(const nixlBlobDesc& memory, const nixl_mem_t& kind,
                            nixlBackendMD*& out) override {
    auto made = std::make_unique<Known>();
    made->kind = kind;
    made->key = kind == OBJ_SEG && !memory.metaInfo.empty() ? memory.metaInfo : std::to_string(memory.devId);
    if (kStored == BLK_SEG && !stored_.contains(made->key)) return NIXL_ERR_NOT_FOUND;
    out = made.release();
    return NIXL_SUCCESS;
  }
  nixl_status_t deregisterMem(nixlBackendMD* meta) override {
    delete meta;
    return NIXL_SUCCESS;
  }
  nixl_status_t connect(const std::string&) override { return NIXL_SUCCESS; }
  nixl_status_t disconnect(const std::string&) override { return NIXL_SUCCESS; }
  nixl_status_t unloadMD(nixlBackendMD*) override { return NIXL_SUCCESS; }
  nixl_status_t loadLocalMD(nixlBackendMD* input, nixlBackendMD*& output) override {
    output = input;
    return NIXL_SUCCESS;
  }

  nixl_status_t prepXfer(const nixl_xfer_op_t&, const nixl_meta_dlist_t& local,
                         const nixl_meta_dlist_t& remote, const std::string&, nixlBackendReqH*& handle,
                         const nixl_opt_b_args_t*) const override {
    if (local.getType() != DRAM_SEG || remote.getType() != kStored) return NIXL_ERR_INVALID_PARAM;
    handle = new Request;
    return NIXL_SUCCESS;
  }
  nixl_status_t postXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                         const nixl_meta_dlist_t& remote, const std::string&, nixlBackendReqH*& handle,
                         const nixl_opt_b_args_t*) const override {
    static_cast<Request*>(handle)->posted = true;
    for (size_t i = 0; i < static_cast<size_t>(local.descCount()); ++i) {
      std::vector<char>& bytes = stored_[static_cast<const Known*>(remote[i].metadataP)->key];
      if (kStored == OBJ_SEG && operation == NIXL_WRITE)
        bytes.resize(std::max(bytes.size(), remote[i].addr + remote[i].len));
      if (remote[i].addr + local[i].len > bytes.size()) return NIXL_ERR_BACKEND;
      auto* const here = reinterpret_cast<char*>(local[i].addr);
      char* const there = bytes.data() + remote[i].addr;
      std::memcpy(operation == NIXL_WRITE ? there : here, operation == NIXL_WRITE ? here : there,
                  local[i].len);
    }
    return NIXL_IN_PROG;
  }
  nixl_status_t checkXfer(nixlBackendReqH*) const override { return NIXL_SUCCESS; }
  nixl_status_t releaseReqH(nixlBackendReqH* handle) const override {
    delete handle;
    return NIXL_SUCCESS;
  }

 private:
  mutable std::map<std::string, std::vector<char>> stored_;  // by device or key
};

}  // namespace

extern "C" NIXL_PLUGIN_EXPORT nixlBackendPlugin* nixl_plugin_init() {
  return nixlBackendPluginCreator<Store>::create(NIXL_PLUGIN_API_VERSION, STORE_NAME, "0.1.0", kParameters,
                                                 kKinds);
}
extern "C" NIXL_PLUGIN_EXPORT void nixl_plugin_fini() {}
