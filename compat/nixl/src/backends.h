// Backends by NIXL's names, and what stands behind each here.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <nixl_types.h>
#include "object_store.h"

namespace towline::nixl {

inline constexpr const char* kAutomatic = "auto";  // of towline_threads

enum class Role {
  kTransport,  // other agents' memory, by whichever of Towline's transports is best
  kFiles,      // this host's files, where Towline has a backend for them
  kObjects,    // at an S3 server, where Towline's plugin for them is here
  kAbsent,     // known by name, not here
};

struct BackendType {
  const char* name;
  Role role;
  const char* what;  // what it is here, or what is missing
};

// Null for a name that NIXL does not know either.
[[nodiscard]] const BackendType* find_backend_type(const std::string& name) noexcept;
// Every type that there may be here.
[[nodiscard]] std::vector<const BackendType*> backend_types();
// What createBackend looks at, with defaults.
[[nodiscard]] nixl_b_params_t backend_parameters(const BackendType& type);

}  // namespace towline::nixl

class nixlBackendH {
 public:
  nixlBackendH(const towline::nixl::BackendType& backend_type, nixl_b_params_t params, nixl_mem_list_t kinds)
      : type(backend_type), parameters(std::move(params)), memories(std::move(kinds)) {}

  [[nodiscard]] bool is_transport() const noexcept { return type.role == towline::nixl::Role::kTransport; }
  [[nodiscard]] bool serves(nixl_mem_t memory) const noexcept {
    return std::find(memories.begin(), memories.end(), memory) != memories.end();
  }

  const towline::nixl::BackendType& type;
  nixl_b_params_t parameters;
  nixl_mem_list_t memories;
  std::unique_ptr<towline::nixl::ObjectStore> objects;  // of OBJ
  std::string forced;       // one of Towline's transports that every request uses; empty: the best
  uint64_t timeout_ns = 0;  // of requests; 0: the agent's
  uint32_t threads = 0;     // engines to split a request over; 0: as it pays
};
