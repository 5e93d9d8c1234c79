// An agent's registered memory, by NIXL's descriptors.
#pragma once

#include <atomic>
#include <compare>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <towline_nixl.h>
#include <towline/towline.hpp>

namespace towline::nixl {

struct MemoryOptions {
  bool share = false;  // move page-aligned memory to where peers on this host can map it
  uint64_t timeout_ns = 0;
  std::string bucket{};        // of objects
  std::string scheme{"file"};  // of the URIs of files and objects
};

// The URI of a descriptor's object: the key is its metadata or, if that is empty, its device in digits.
[[nodiscard]] std::string uri_of_object(const MemoryOptions& options, const nixlBlobDesc& desc);

// NIXL's kind of memory as Towline's.
[[nodiscard]] uint32_t kind_of(nixl_mem_t type) noexcept;

class MemoryTable {
 public:
  // All or nothing. Throws Error.
  void add(const Agent& agent, const nixl_reg_dlist_t& descs, const MemoryOptions& options);
  // Removes each descriptor once; continues after a failure and returns the first one.
  nixl_status_t remove(const nixl_reg_dlist_t& descs, const MemoryOptions& options);
  // Towline's metadata of the regions that hold the descriptors. Throws Error; kNotFound for one in none.
  [[nodiscard]] std::string metadata(const Agent& agent, const nixl_reg_dlist_t& descs) const;
  // Converts rows of files or objects, whose device is NIXL's (an open descriptor, or the number with which a
  // path or key was registered), to Towline's blocks. False, with `missing`, for a row that is not
  // registered.
  bool storage_blocks(nixl_mem_t type, const Rows& rows, std::vector<towline_blocks_t>& blocks,
                      size_t& missing) const;
  // False, with `missing`, for a row of host memory whose device is not that of the registered memory it lies in. Asks
  // nothing of the rows while every device is 0.
  bool has_devices(const Rows& rows, size_t& missing) const;
  // A registered place of each GPU that has one, by the GPU's number.
  [[nodiscard]] std::vector<nixlBasicDesc> some_of_each_gpu() const;
  void clear();

 private:
  struct Key {
    nixl_mem_t type;
    uint64_t device;
    uintptr_t address;
    size_t bytes;
    auto operator<=>(const Key&) const = default;
  };
  static Key key_of(nixl_mem_t type, const nixlBasicDesc& desc) noexcept {
    return {type, desc.devId, desc.addr, desc.len};
  }
  [[nodiscard]] const Region* covering(const Key& key) const;

  mutable std::mutex mutex_;
  std::multimap<Key, Region> regions_;
  std::map<nixl_mem_t, size_t> longest_;   // of all that were added: it bounds the search
  std::atomic<bool> dram_devices_{false};  // host memory has been registered on a device other than 0
};

}  // namespace towline::nixl
