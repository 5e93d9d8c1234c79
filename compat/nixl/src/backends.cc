#include "backends.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace towline::nixl {

namespace {

constexpr const char* kBest = "Towline's best transport to each peer";
constexpr const char* kFileSystem = "Towline's storage backend for files";
constexpr const char* kObjectStore = "Towline's plugin for objects, which needs libcurl";
constexpr const char* kVendor = "it is not part of NIXL on Towline";

constexpr BackendType kTypes[] = {
    {"UCX", Role::kTransport, kBest},       {"LIBFABRIC", Role::kTransport, kBest},
    {"MOONCAKE", Role::kTransport, kBest},  {"UCCL", Role::kTransport, kBest},
    {"POSIX", Role::kFiles, kFileSystem},   {"GDS", Role::kFiles, kFileSystem},
    {"GDS_MT", Role::kFiles, kFileSystem},  {"OBJ", Role::kObjects, kObjectStore},
    {"AZURE_BLOB", Role::kAbsent, kVendor}, {"HF3FS", Role::kAbsent, kVendor},
    {"GUSLI", Role::kAbsent, kVendor},      {"INFINIA", Role::kAbsent, kVendor},
    {"GPUNETIO", Role::kAbsent, kVendor},
};

}  // namespace

const BackendType* find_backend_type(const std::string& name) noexcept {
  const auto* const found =
      std::ranges::find_if(kTypes, [&](const BackendType& type) { return name == type.name; });
  return found == std::end(kTypes) ? nullptr : found;
}

std::vector<const BackendType*> backend_types() {
  std::vector<const BackendType*> types;
  for (const BackendType& type : kTypes) {
    if (type.role != Role::kAbsent) types.push_back(&type);
  }
  return types;
}

nixl_b_params_t backend_parameters(const BackendType& type) {
  if (type.role == Role::kObjects) return object_parameters();
  if (type.role != Role::kTransport) return {};
  // Towline's own: the transport to use, the deadline of requests, the engines a request is split over.
  return {{"towline_transport", ""}, {"towline_timeout", ""}, {"towline_threads", kAutomatic}};
}

}  // namespace towline::nixl
