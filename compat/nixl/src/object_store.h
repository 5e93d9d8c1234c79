// Objects at an S3 server, for the backend OBJ.
//
// Towline's object backend takes its settings when its agent is made, NIXL's when the backend is: so each has
// an agent of its own, which nobody else hears of, with the memory that was registered for it.
#pragma once

#include <optional>
#include <string>

#include <nixl_types.h>
#include <towline/towline.hpp>
#include "memory_table.h"

namespace towline::nixl {

// What createBackend("OBJ") looks at, with defaults: NIXL's names.
[[nodiscard]] nixl_b_params_t object_parameters();
// The same as settings of Towline's object backend, TOML. Throws Error for a value that can't be meant.
[[nodiscard]] std::string object_settings(const nixl_b_params_t& parameters);

class ObjectStore {
 public:
  // Throws Error.
  ObjectStore(const std::string& name, const nixl_b_params_t& parameters, uint64_t timeout_ns);

  // Whether Towline's plugin for objects can be loaded. Found out once in a process, by loading it.
  static bool usable();

  [[nodiscard]] towline_agent_t* native() const noexcept { return agent_.native(); }
  // Memory, or objects: the key is the descriptor's metadata or, if there is none, its device in digits.
  // Throws Error.
  void add(const nixl_reg_dlist_t& descs);
  nixl_status_t remove(const nixl_reg_dlist_t& descs) { return memory_.remove(descs, options_); }
  // As towline_block_list_create; `missing` is the row of an object that is not registered.
  int32_t make_list(nixl_mem_t type, const Rows& rows, towline_block_list_t** list,
                    std::optional<size_t>& missing) const;
  // Its size, when it is there. Throws Error.
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
