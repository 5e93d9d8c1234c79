// Towline's additions to NIXL's interface. Programs that use them run on Towline only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nixl.h"

namespace towline::nixl {

// The error message of the last call that failed on this thread; "" if none has.
TOWLINE_NIXL_API const std::string& last_error() noexcept;

// ---- The same calls without copies, for arrays that lie elsewhere

// `count` descriptors in arrays of 64-bit integers. The strides are in bytes. A stride of 0 for lengths or
// devices uses the first value for all.
struct Rows {
  const uint64_t* addresses = nullptr;
  const uint64_t* lengths = nullptr;
  const uint64_t* devices = nullptr;
  size_t count = 0;
  size_t address_stride = sizeof(uint64_t);
  size_t other_stride = 0;

  // Rows of address, length and device.
  static Rows of(const uint64_t* rows, size_t count) noexcept {
    if (count == 0) return {};
    return {rows, rows + 1, rows + 2, count, sizeof(nixlBasicDesc), sizeof(nixlBasicDesc)};
  }
  static Rows of(const nixl_xfer_dlist_t& descs) noexcept {
    return of(descs.isEmpty() ? nullptr : reinterpret_cast<const uint64_t*>(&descs[0]),
              static_cast<size_t>(descs.descCount()));
  }
  [[nodiscard]] uint64_t address(size_t i) const noexcept { return at(addresses, i * address_stride); }
  [[nodiscard]] uint64_t length(size_t i) const noexcept { return at(lengths, i * other_stride); }
  [[nodiscard]] uint64_t device(size_t i) const noexcept { return at(devices, i * other_stride); }
  [[nodiscard]] nixlBasicDesc operator[](size_t i) const noexcept {
    return {address(i), length(i), device(i)};
  }
  // The number of rows that contain every length and device.
  [[nodiscard]] size_t differing() const noexcept { return other_stride == 0 && count != 0 ? 1 : count; }

 private:
  static uint64_t at(const uint64_t* first, size_t bytes) noexcept {
    return *reinterpret_cast<const uint64_t*>(reinterpret_cast<const char*>(first) + bytes);
  }
};

// `count` rows of address, length, device, stride and a number of descriptors, each beginning `stride` bytes
// after the one before it. Indices count through all of them.
struct StridedRows {
  const uint64_t* data = nullptr;
  size_t count = 0;
};

// `count` indices of 4 or 8 bytes; with `data` null start, start + step, ...
struct Indices {
  const void* data = nullptr;
  uint32_t bytes = 4;
  size_t count = 0;
  uint64_t start = 0;
  uint64_t step = 1;
};

TOWLINE_NIXL_API nixl_status_t prep_xfer_dlist(const nixlAgent& agent, const std::string& agent_name,
                                               nixl_mem_t type, const Rows& rows, nixlDlistH*& list,
                                               const nixl_opt_args_t* extra_params = nullptr);
TOWLINE_NIXL_API nixl_status_t prep_strided_dlist(const nixlAgent& agent, const std::string& agent_name,
                                                  nixl_mem_t type, StridedRows rows, nixlDlistH*& list,
                                                  const nixl_opt_args_t* extra_params = nullptr);
TOWLINE_NIXL_API nixl_status_t make_xfer_req(const nixlAgent& agent, nixl_xfer_op_t operation,
                                             const nixlDlistH* local, const Indices& local_indices,
                                             const nixlDlistH* remote, const Indices& remote_indices,
                                             nixlXferReqH*& request,
                                             const nixl_opt_args_t* extra_params = nullptr);
// If `may_wait` is false and making the request would wait for a connection: NIXL_IN_PROG, and no request.
TOWLINE_NIXL_API nixl_status_t create_xfer_req(const nixlAgent& agent, nixl_xfer_op_t operation,
                                               nixl_mem_t local_type, const Rows& local,
                                               nixl_mem_t remote_type, const Rows& remote,
                                               const std::string& remote_agent, nixlXferReqH*& request,
                                               const nixl_opt_args_t* extra_params = nullptr,
                                               bool may_wait = true);

// True if the list's agent is this one or connected: then making a request for it does not wait for a
// connection.
TOWLINE_NIXL_API bool is_connected(const nixlDlistH* list) noexcept;

// ---- Notifications without a map

struct Notification {
  std::string sender;
  nixl_blob_t text;
};
// The notifications that getNotifs would return, in order of arrival.
TOWLINE_NIXL_API nixl_status_t take_notifs(nixlAgent& agent, std::vector<Notification>& notifications);

// ---- Waiting instead of polling

// Waits for a posted request's outcome; NIXL_IN_PROG when `timeout_ns` passed first.
TOWLINE_NIXL_API nixl_status_t wait_xfer(const nixlAgent& agent, nixlXferReqH* request, uint64_t timeout_ns);

// ---- Explaining

// Which transport moves a request's bytes, why, and why others do not: JSON.
TOWLINE_NIXL_API nixl_status_t xfer_route(const nixlXferReqH* request, std::string& json);
// The agent's transports, regions and peers, and its counters: JSON.
TOWLINE_NIXL_API nixl_status_t agent_info(const nixlAgent& agent, std::string& json);
TOWLINE_NIXL_API nixl_status_t agent_counters(const nixlAgent& agent, std::string& json);
// The address at which the agent listens: "10.0.0.7:8888".
TOWLINE_NIXL_API nixl_status_t agent_address(const nixlAgent& agent, std::string& address);

// The result of sendLocalMD and similar calls.
struct MetadataCall {
  uint64_t id = 0;   // counts up from 1
  std::string what;  // "sendLocalMD to 10.0.0.7:8888"
  nixl_status_t status = NIXL_IN_PROG;
  std::string error;  // "" unless it failed
};
// The agent's last 64 of them, oldest first.
TOWLINE_NIXL_API std::vector<MetadataCall> metadata_calls(const nixlAgent& agent);

}  // namespace towline::nixl
