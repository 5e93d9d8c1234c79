// Source- and binary-compatible with NIXL's header of this name: what an agent and a plugin's engine give each
// other. The order and types of members are part of the interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <nixl_descriptors.h>
#include <nixl_types.h>
#include "../common/nixl_log.h"
#include "../common/nixl_time.h"

// Sender and text of each.
using notif_list_t = std::vector<std::pair<std::string, std::string>>;

struct nixlBackendOptionalArgs {
  nixl_blob_t notifMsg;  // to deliver after the data, if hasNotif
  bool hasNotif = false;
  nixl_blob_t customParam;
};
using nixl_opt_b_args_t = nixlBackendOptionalArgs;

// An engine is made from this. An aggregate.
class nixlBackendInitParams {
 public:
  std::string localAgent;
  nixl_backend_t type;
  nixl_b_params_t* customParams = nullptr;
  bool enableProgTh = false;
  nixlTime::us_t pthrDelay = 0;
  nixl_thread_sync_t syncMode{};
  bool enableTelemetry_ = false;
};

// An engine's request.
class TOWLINE_NIXL_API nixlBackendReqH {
 public:
  nixlBackendReqH() = default;
  virtual ~nixlBackendReqH() = default;
};

// An engine's knowledge of registered memory: its own, or a peer's.
class TOWLINE_NIXL_API nixlBackendMD {
 protected:
  bool isPrivateMD;

 public:
  explicit nixlBackendMD(bool isPrivate) : isPrivateMD(isPrivate) {}
  virtual ~nixlBackendMD() = default;
};

class nixlBackendConnMD {
 public:
  std::string dstIpAddress;
  uint16_t dstPort;
};

// A descriptor with the engine's metadata of the memory that it lies in.
class nixlMetaDesc : public nixlBasicDesc {
 public:
  nixlBackendMD* metadataP;

  using nixlBasicDesc::nixlBasicDesc;
  nixlMetaDesc() : metadataP(nullptr) {}
  nixlMetaDesc(uintptr_t address, size_t length, uint64_t device, nixlBackendMD* metadata)
      : nixlBasicDesc(address, length, device), metadataP(metadata) {}

  friend bool operator==(const nixlMetaDesc& a, const nixlMetaDesc& b) noexcept {
    return static_cast<const nixlBasicDesc&>(a) == b && a.metadataP == b.metadataP;
  }
  void print(const std::string& suffix) const {
    nixlBasicDesc::print(", metadata at " + std::to_string(reinterpret_cast<uintptr_t>(metadataP)) + suffix);
  }
};

struct nixlRemoteMetaDesc : public nixlMetaDesc {
  std::string remoteAgent;

  using nixlMetaDesc::nixlMetaDesc;
  nixlRemoteMetaDesc() = default;
  explicit nixlRemoteMetaDesc(const std::string& remote_agent) : remoteAgent(remote_agent) {}

  friend bool operator==(const nixlRemoteMetaDesc& a, const nixlRemoteMetaDesc& b) noexcept {
    return static_cast<const nixlMetaDesc&>(a) == b && a.remoteAgent == b.remoteAgent;
  }
};

using nixl_meta_dlist_t = nixlDescList<nixlMetaDesc>;
using nixl_remote_meta_dlist_t = nixlDescList<nixlRemoteMetaDesc>;

// `count` blocks of `len` bytes, each beginning `stride` bytes after the one before it; the first of them is
// block `start_idx` of its list.
class nixlStrideDesc : public nixlMetaDesc {
 public:
  size_t stride = 0;
  size_t count = 0;
  size_t start_idx = 0;

  using nixlMetaDesc::nixlMetaDesc;
  nixlStrideDesc() = default;
  nixlStrideDesc(uintptr_t address, size_t length, uint64_t device, nixlBackendMD* metadata,
                 size_t bytes_apart, size_t blocks)
      : nixlMetaDesc(address, length, device, metadata), stride(bytes_apart), count(blocks) {}

  // `size` adjacent blocks from the list's block `index` on.
  [[nodiscard]] nixlMetaDesc getMetaDesc(size_t index, size_t size) const noexcept {
    return {addr + (index - start_idx) * stride, len * size, devId, metadataP};
  }
};

extern template class TOWLINE_NIXL_API nixlDescList<nixlMetaDesc>;
extern template class TOWLINE_NIXL_API nixlDescList<nixlRemoteMetaDesc>;
extern template class TOWLINE_NIXL_API nixlDescList<nixlStrideDesc>;

// Runs of blocks in order.
class nixlStrideDescList : public nixlDescList<nixlStrideDesc> {
 public:
  using nixlDescList<nixlStrideDesc>::nixlDescList;

  // The number of blocks in all runs.
  [[nodiscard]] size_t flatSize() const {
    return descs.empty() ? 0 : descs.back().start_idx + descs.back().count;
  }
  // The run that holds block `flat_index` of the list, which must not be empty.
  [[nodiscard]] const nixlStrideDesc& find(size_t flat_index, size_t /*run_size*/) const noexcept {
    const auto after =
        std::upper_bound(descs.begin(), descs.end(), flat_index,
                         [](size_t index, const nixlStrideDesc& run) { return index < run.start_idx; });
    return *(after == descs.begin() ? after : after - 1);
  }
};
using nixl_stride_dlist_t = nixlStrideDescList;
