// Source-compatible with NIXL's header of this name: descriptors and lists of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nixl_types.h"

// One contiguous piece of memory, file, block device or object.
class TOWLINE_NIXL_API nixlBasicDesc {
 public:
  uintptr_t addr;  // or the offset in a file, block device or object
  size_t len;      // bytes
  uint64_t devId;  // GPU, file, block device or object; kept but not used for DRAM

  nixlBasicDesc() {}  // NOLINT: leaves its members unset, so that large lists are made fast
  nixlBasicDesc(const uintptr_t& address, const size_t& length, const uint64_t& device) noexcept
      : addr(address), len(length), devId(device) {}
  // From serialize(); all zero when it is not of that size.
  nixlBasicDesc(const nixl_blob_t& blob);  // NOLINT: implicit as it is there
  nixlBasicDesc(const nixlBasicDesc&) = default;
  nixlBasicDesc& operator=(const nixlBasicDesc&) = default;
  ~nixlBasicDesc() = default;

  // By device, then address, then length.
  bool operator<(const nixlBasicDesc& other) const noexcept {
    if (devId != other.devId) return devId < other.devId;
    if (addr != other.addr) return addr < other.addr;
    return len < other.len;
  }
  friend bool operator==(const nixlBasicDesc& a, const nixlBasicDesc& b) noexcept {
    return a.addr == b.addr && a.len == b.len && a.devId == b.devId;
  }
  friend bool operator!=(const nixlBasicDesc& a, const nixlBasicDesc& b) noexcept { return !(a == b); }

  // True if this contains all of `query`.
  bool covers(const nixlBasicDesc& query) const noexcept {
    return devId == query.devId && addr <= query.addr && query.addr + query.len <= addr + len;
  }
  // Whether they share a byte.
  bool overlaps(const nixlBasicDesc& query) const noexcept {
    return devId == query.devId && addr < query.addr + query.len && query.addr < addr + len;
  }
  nixl_blob_t serialize() const;
  // Writes it to standard error when the log level is INFO or finer.
  void print(const std::string& suffix) const;
};
static_assert(sizeof(nixlBasicDesc) == 24, "programs hand N x 3 arrays of 64-bit integers as descriptors");

// With bytes of metadata, such as a file's path.
class TOWLINE_NIXL_API nixlBlobDesc : public nixlBasicDesc {
 public:
  nixl_blob_t metaInfo;

  using nixlBasicDesc::nixlBasicDesc;
  nixlBlobDesc() = default;
  nixlBlobDesc(const uintptr_t& address, const size_t& length, const uint64_t& device,
               const nixl_blob_t& meta_info)
      : nixlBasicDesc(address, length, device), metaInfo(meta_info) {}
  nixlBlobDesc(const nixlBasicDesc& desc, const nixl_blob_t& meta_info)
      : nixlBasicDesc(desc), metaInfo(meta_info) {}
  nixlBlobDesc(const nixl_blob_t& blob);  // NOLINT: implicit as it is there

  friend bool operator==(const nixlBlobDesc& a, const nixlBlobDesc& b) noexcept {
    return static_cast<const nixlBasicDesc&>(a) == b && a.metaInfo == b.metaInfo;
  }
  nixl_blob_t serialize() const;
  void print(const std::string& suffix) const;
};

// With the name of the agent it belongs to.
struct TOWLINE_NIXL_API nixlRemoteDesc : public nixlBasicDesc {
  std::string remoteAgent;

  using nixlBasicDesc::nixlBasicDesc;
  nixlRemoteDesc() = default;
  nixlRemoteDesc(const uintptr_t address, const size_t length, const uint64_t device,
                 const std::string& remote_agent)
      : nixlBasicDesc(address, length, device), remoteAgent(remote_agent) {}
  nixlRemoteDesc(const nixlBasicDesc& desc, const std::string& remote_agent)
      : nixlBasicDesc(desc), remoteAgent(remote_agent) {}
  explicit nixlRemoteDesc(const nixl_blob_t& blob);

  friend bool operator==(const nixlRemoteDesc& a, const nixlRemoteDesc& b) noexcept {
    return static_cast<const nixlBasicDesc&>(a) == b && a.remoteAgent == b.remoteAgent;
  }
  nixl_blob_t serialize() const;
};

// Descriptors of one kind of memory. Its storage is contiguous.
template <class T>
class nixlDescList {
 protected:
  nixl_mem_t type;
  std::vector<T> descs;

 public:
  nixlDescList(const nixl_mem_t& mem_type, const int& init_size = 0)  // NOLINT: implicit as it is there
      : type(mem_type), descs(init_size > 0 ? static_cast<size_t>(init_size) : 0) {
    static_assert(std::is_base_of_v<nixlBasicDesc, T>);
  }
  // Reads the output of serialize(); empty if it is missing or incomplete.
  nixlDescList(nixlSerDes* deserializer);  // NOLINT: implicit as it is there
  nixlDescList(const nixlDescList&) = default;
  nixlDescList(nixlDescList&&) noexcept = default;
  nixlDescList& operator=(const nixlDescList&) = default;
  nixlDescList& operator=(nixlDescList&&) noexcept = default;
  virtual ~nixlDescList() = default;

  nixl_mem_t getType() const { return type; }
  int descCount() const { return static_cast<int>(descs.size()); }
  bool isEmpty() const noexcept { return descs.empty(); }

  const T& operator[](size_t index) const { return descs[index]; }
  T& operator[](size_t index) { return descs[index]; }
  typename std::vector<T>::const_iterator begin() const { return descs.begin(); }
  typename std::vector<T>::const_iterator end() const { return descs.end(); }
  typename std::vector<T>::iterator begin() { return descs.begin(); }
  typename std::vector<T>::iterator end() { return descs.end(); }

  template <class Y>
  friend bool operator==(const nixlDescList<Y>& a, const nixlDescList<Y>& b);

  virtual void resize(const size_t& count) { descs.resize(count); }
  void reserve(size_t count) { descs.reserve(count); }
  void clear() { descs.clear(); }
  virtual void addDesc(const T& desc) { descs.push_back(desc); }
  template <class... Args>
  T& emplace(Args&&... args) {
    return descs.emplace_back(std::forward<Args>(args)...);
  }
  // Throws std::out_of_range.
  void remDesc(const int& index);
  // The same list with plain descriptors.
  nixlDescList<nixlBasicDesc> trim() const;
  // The index of a descriptor with the same address, length and device, or NIXL_ERR_NOT_FOUND.
  virtual int getIndex(const nixlBasicDesc& query) const;
  // NIXL_ERR_INVALID_PARAM for lists of remote descriptors.
  nixl_status_t serialize(nixlSerDes* serializer) const;
  void print() const;
  std::string to_string(bool compact = false) const;
};

template <class T>
bool operator==(const nixlDescList<T>& a, const nixlDescList<T>& b) {
  return a.type == b.type && a.descs == b.descs;
}

extern template class TOWLINE_NIXL_API nixlDescList<nixlBasicDesc>;
extern template class TOWLINE_NIXL_API nixlDescList<nixlBlobDesc>;
extern template class TOWLINE_NIXL_API nixlDescList<nixlRemoteDesc>;

using nixl_xfer_dlist_t = nixlDescList<nixlBasicDesc>;
using nixl_reg_dlist_t = nixlDescList<nixlBlobDesc>;
using nixl_remote_dlist_t = nixlDescList<nixlRemoteDesc>;
using nixl_local_dlist_t = nixlDescList<nixlBasicDesc>;
