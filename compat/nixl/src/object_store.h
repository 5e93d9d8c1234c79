// Objects at an S3 server, for the backend OBJ.
//
// Towline's object backend takes its settings when its agent is created, NIXL's when the backend is created.
// So each backend has a private agent, with the memory that was registered for it.
#pragma once

#include <optional>
#include <string>

#include <nixl_types.h>
#include <towline/towline.hpp>
#include "memory_table.h"

namespace towline::nixl {

// The parameters that createBackend("OBJ") reads, by NIXL's names, with defaults.
[[nodiscard]] nixl_b_params_t object_parameters();
// The same as settings of Towline's object backend, TOML. Throws Error for an invalid value.
[[nodiscard]] std::string object_settings(const nixl_b_params_t& parameters);

class ObjectStore {
 public:
  // Throws Error.
  ObjectStore(const std::string& name, const nixl_b_params_t& parameters, uint64_t timeout_ns);

  // True if Towline's plugin for objects can be loaded. Tried once in a process.
  static bool usable();

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

  const std::string bucket_;
  const Agent agent_;
  const MemoryOptions options_;
  MemoryTable memory_;
};

}  // namespace towline::nixl
