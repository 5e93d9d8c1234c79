// Stores that NIXL knows by names of their own: objects (OBJ, AZURE_BLOB) and files by vendors' libraries (GDS, GDS_MT,
// HF3FS). Files by system calls are the agent's own (POSIX).
//
// Towline's storage backends take their settings when their agent is created, NIXL's when the backend is created.
// So each backend has a private agent, with the memory that was registered for it.
#pragma once

#include <optional>
#include <string>

#include <nixl_types.h>
#include <towline/towline.hpp>
#include "memory_table.h"

namespace towline::nixl {

struct StoreType {
  const char* name;    // NIXL's
  nixl_mem_t stored;   // OBJ_SEG or FILE_SEG
  const char* scheme;  // of Towline's URIs
  const char* bucket;  // the parameter that names it; null if it has none
  bool gpu;            // it moves GPU memory too
  // The parameters that createBackend reads, by NIXL's names, with defaults.
  nixl_b_params_t (*parameters)();
  // The same as settings of Towline's backend, TOML. Throws Error for an invalid value.
  std::string (*settings)(const nixl_b_params_t& parameters);
};
// Null for any other name.
[[nodiscard]] const StoreType* find_store_type(const std::string& name) noexcept;

class ObjectStore {
 public:
  // Throws Error.
  ObjectStore(const StoreType& type, const std::string& name, const nixl_b_params_t& parameters,
              uint64_t timeout_ns);

  // The kinds of memory of such a store; empty if Towline's plugin for it can't be loaded, or its library is not here.
  static nixl_mem_list_t memories(const StoreType& type);
  // The reason why there are none, as far as one is known.
  static std::string why_not(const StoreType& type);

  [[nodiscard]] nixl_mem_t stored() const noexcept { return type_.stored; }

  [[nodiscard]] towline_agent_t* native() const noexcept { return agent_.native(); }
  // Registers memory, or objects: the key is the descriptor's metadata or, if that is empty, its device in
  // digits. Throws Error.
  void add(const nixl_reg_dlist_t& descs);
  nixl_status_t remove(const nixl_reg_dlist_t& descs) { return memory_.remove(descs, options_); }
  // As towline_block_list_create; `missing` is the row of an object that is not registered.
  int32_t make_list(nixl_mem_t type, const Rows& rows, towline_block_list_t** list,
                    std::optional<size_t>& missing) const;
  // The object's size, if it exists. Throws Error.
  [[nodiscard]] nixl_query_resp_t query(const nixlBlobDesc& desc) const;
  void clear() { memory_.clear(); }

 private:
  void check_bucket() const;

  const StoreType& type_;
  const std::string bucket_;
  const Agent agent_;
  const MemoryOptions options_;
  MemoryTable memory_;
};

}  // namespace towline::nixl
