#include "backends.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace towline::nixl {

namespace {

constexpr const char* kBest = "Towline's best transport to each peer";
constexpr const char* kLibrary = "the library of that name, which has to be installed";
constexpr const char* kFileSystem = "Towline's storage backend for files";
constexpr const char* kObjectStore = "Towline's plugin for objects, which needs libcurl";
constexpr const char* kCuFile = "Towline's plugin for GPUDirect Storage, which needs NVIDIA's libcufile.so.0";
constexpr const char* kUsrbio = "Towline's plugin for 3FS, which needs its client's libhf3fs_api_shared.so";

constexpr BackendType kTypes[] = {
    {"UCX", Role::kTransport, kBest},
    {"POSIX", Role::kFiles, kFileSystem},
    {"OBJ", Role::kStore, kObjectStore},
    {"LIBFABRIC", Role::kTransport, kLibrary, "libfabric"},
    {"MOONCAKE", Role::kAbsent, "Mooncake's libtransfer_engine.so; UCX is Towline's best transport"},
    {"UCX_MO", Role::kTransport, kLibrary, "ucx"},
    {"UCCL", Role::kAbsent, "UCCL's libuccl_p2p.so; UCX is Towline's best transport"},
    {"GPUNETIO", Role::kAbsent,
     "DOCA's libdoca_gpunetio.so.2 and libdoca_verbs.so.2; UCX is Towline's best transport"},
    {"GDS", Role::kStore, kCuFile},
    {"GDS_MT", Role::kStore, kCuFile},
    {"AZURE_BLOB", Role::kStore, kObjectStore},
    {"HF3FS", Role::kStore, kUsrbio},
    {"GUSLI", Role::kAbsent, "libgusli_clnt.so, which NIXL's wheel has beside the plugin"},
    {"INFINIA", Role::kAbsent, "Infinia's libred_client.so.2 and libred_async.so"},
};

// NIXL's own parameters with their defaults, because programs set them without checking that they exist. They
// are kept and have no effect.
constexpr std::pair<const char*, const char*> kOfUcx[] = {
    {"ucx_devices", ""}, {"num_workers", "1"}, {"ucx_error_handling_mode", "peer"}, {"engine_config", ""}};
constexpr std::pair<const char*, const char*> kOfPosix[] = {{"use_aio", "false"},
                                                            {"use_uring", "false"},
                                                            {"use_posix_aio", "false"},
                                                            {"ios_pool_size", "65536"},
                                                            {"kernel_queue_size", "256"}};

std::string with_plus(std::string text) {
  std::ranges::replace(text, ',', '+');
  std::erase(text, ' ');
  return text;
}

}  // namespace

Library library_for(const BackendType& type, const nixl_b_params_t& parameters, bool real_ucx,
                    const std::string& ucx_tls) {
  const auto given = [&](const char* key) {
    const auto found = parameters.find(key);
    return found == parameters.end() ? std::string{} : found->second;
  };
  const std::string forced = given("towline_transport");
  const std::string options = given("engine_config");
  Library library;
  library.required = true;
  if (forced == "libfabric" || (forced.empty() && type.library == "libfabric")) {
    library.name = "libfabric";
    return library;
  }
  const bool ucx = forced == "ucx" || (forced.empty() && (real_ucx || !type.library.empty()));
  if (!ucx && (!forced.empty() || options.empty())) return {};
  library.name = "ucx";
  library.required = ucx;
  const auto add = [&](const char* name, const std::string& value) {
    if (value.empty()) return;
    library.settings += library.settings.empty() ? '?' : '&';
    library.settings += std::string(name) + "=" + with_plus(value);
  };
  if (ucx_tls != "all") add("transports", ucx_tls);
  add("devices", given("ucx_devices"));
  add("options", options);
  return library;
}

const BackendType* find_backend_type(const std::string& name) noexcept {
  const auto* const found =
      std::ranges::find_if(kTypes, [&](const BackendType& type) { return name == type.name; });
  return found == std::end(kTypes) ? nullptr : found;
}

std::vector<const BackendType*> backend_types() {
  std::vector<const BackendType*> types;
  for (const BackendType& type : kTypes) {
    if (type.role != Role::kAbsent && type.library.empty()) types.push_back(&type);
  }
  return types;
}

nixl_b_params_t backend_parameters(const BackendType& type) {
  if (type.role == Role::kStore) return find_store_type(type.name)->parameters();
  if (type.role == Role::kFiles) return {std::begin(kOfPosix), std::end(kOfPosix)};
  if (type.role != Role::kTransport) return {};
  nixl_b_params_t parameters;
  if (type.library != "libfabric") parameters = {std::begin(kOfUcx), std::end(kOfUcx)};
  if (type.name == std::string_view{"UCX_MO"}) parameters["num_ucx_engines"] = "";
  // Towline's own: the transport to use, the deadline of requests, the engines a request is split over.
  parameters.insert({{"towline_transport", ""}, {"towline_timeout", ""}, {"towline_threads", kAutomatic}});
  return parameters;
}

}  // namespace towline::nixl
