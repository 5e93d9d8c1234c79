#include "agent/builtin_backends.h"

#include "storage/posix/plugin.h"
#include "transports/faulty/plugin.h"
#include "transports/memory/plugin.h"
#include "transports/rdma/plugin.h"
#include "transports/shm/plugin.h"
#include "transports/tcp/plugin.h"

namespace towline {

std::span<const BuiltinBackend> builtin_backends() noexcept {
  static constexpr BuiltinBackend kBuiltin[] = {
      {"memory", towline_memory_plugin, true},
      {"shm", towline_shm_plugin, true},
      {"tcp", towline_tcp_plugin, true},
      {"rdma", towline_rdma_plugin, true},
      {"posix", towline_posix_plugin, true},
      {"ucx", towline_ucx_plugin, false},
      {"libfabric", towline_libfabric_plugin, false},
  };
  return kBuiltin;
}

std::span<const BundledBackend> bundled_backends() noexcept {
  static constexpr BundledBackend kBundled[] = {
      {"cuda", "cuda", "", true},       {"object", "object", "s3", false},
      {"azure", "object", "az", false}, {"gcs", "object", "gs", false},
      {"gds", "gds", "gds", false},     {"hf3fs", "hf3fs", "hf3fs", false},
      {"nixl", "nixl", "nixl", false},  {"nixl_net", "nixl_net", "", false},
      {"tcpx", "tcpx", "", false},
  };
  return kBundled;
}

const towline_plugin_v1_t* wrap_with_faults(const towline_plugin_v1_t* plugin, const std::string& faults) {
  return make_faulty(plugin, framing::parse_fault_options(faults));
}

}  // namespace towline
