// Backends by NIXL's names, and the part of Towline behind each.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nixl_types.h>
#include "object_store.h"

namespace towline::nixl {

class Engine;

inline constexpr const char* kAutomatic = "auto";  // of towline_threads

enum class Role {
  kTransport,  // other agents' memory, over Towline's best transport
  kFiles,      // this host's files, if Towline has a backend for them
  kStore,   // objects, or files by a vendor's library, if Towline's plugin for them and the library are here
  kAbsent,  // NIXL's plugin of that name, if there is one, is a kEngine
  kEngine,  // a plugin of NIXL's interface
};

struct BackendType {
  const char* name;
  Role role;
  const char* what;               // description; for kAbsent, the libraries that the plugin needs
  std::string_view library = {};  // the backend of Towline that carries all of its requests; empty: the best
};

// Null for a name that is not one of NIXL's.
[[nodiscard]] const BackendType* find_backend_type(const std::string& name) noexcept;
// Every type that may be available, except those whose library has to be asked for.
[[nodiscard]] std::vector<const BackendType*> backend_types();
// The parameters that createBackend reads, with defaults.
[[nodiscard]] nixl_b_params_t backend_parameters(const BackendType& type);

// A backend of Towline that only those who ask for it get.
struct Library {
  std::string name;       // "" for none: "ucx", "libfabric"
  std::string settings;   // "?transports=tcp&options=...", or ""
  bool required = false;  // else the best transport is used where it is not here
};
// The library that a backend of this type with these parameters asks for. `real_ucx`: the user wants UCX for "UCX".
[[nodiscard]] Library library_for(const BackendType& type, const nixl_b_params_t& parameters, bool real_ucx,
                                  const std::string& ucx_tls);

}  // namespace towline::nixl

class nixlBackendH {
 public:
  nixlBackendH(const towline::nixl::BackendType& backend_type, nixl_b_params_t params, nixl_mem_list_t kinds);
  // Takes over a plugin's engine.
  explicit nixlBackendH(std::unique_ptr<towline::nixl::Engine> plugins_engine);
  ~nixlBackendH();

  [[nodiscard]] bool is_transport() const noexcept { return type.role == towline::nixl::Role::kTransport; }
  // True if it moves memory of other agents.
  [[nodiscard]] bool reaches_others() const noexcept;
  [[nodiscard]] bool carries_notifs() const noexcept;
  [[nodiscard]] bool serves(nixl_mem_t memory) const noexcept {
    return std::find(memories.begin(), memories.end(), memory) != memories.end();
  }

  const std::unique_ptr<towline::nixl::Engine> engine;  // null: Towline's own
  const towline::nixl::BackendType& type;
  nixl_b_params_t parameters;
  nixl_mem_list_t memories;
  std::unique_ptr<towline::nixl::ObjectStore> objects;  // for stores
  std::string forced;       // one of Towline's transports that every request uses; empty: the best
  uint64_t timeout_ns = 0;  // for requests; 0: the agent's
  uint32_t threads = 0;     // engines to split a request over; 0: automatic
};
