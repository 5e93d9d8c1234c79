// For tests: an agent with a backend that gives memory of a GPU to receive into. The GPU is made of host memory.
#pragma once

#include <towline/plugin/landing.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/os/dma_buf.h"
#include "base/os/memfd.h"
#include "towline/plugin/backend.hpp"
#include "towline/towline.h"

namespace towline::tcpx::testing {

class FakeGpuHost {
 public:
  static constexpr uint64_t kDevice = 1;
  static constexpr const char* kGpu = "0000:04:00.0";
  static constexpr uint64_t kExportOffset = 4096;

  FakeGpuHost() {
    table_.struct_size = sizeof table_;
    table_.open_pool = open_pool;
    table_.close_pool = close_pool;
    table_.reach_pool = [](towline_landing*, towline_landing_pool*) -> int32_t { return TOWLINE_OK; };
    table_.read_pool = read_pool;
    table_.export_memory = export_memory;
    services_.struct_size = sizeof services_;
    services_.context = this;
    services_.landing = [](void* context, const towline_landing_table_v1** table,
                           towline_backend** backend) -> int32_t {
      auto& self = *static_cast<FakeGpuHost*>(context);
      if (self.absent) return TOWLINE_NOT_FOUND;
      *table = &self.table_;
      *backend = reinterpret_cast<towline_backend*>(&self);
      return TOWLINE_OK;
    };
  }

  [[nodiscard]] plugin::Host host() const { return plugin::Host(&services_); }
  void be_older() { table_.open_pool = nullptr; }

  bool absent = false;
  std::string fails;  // why it gives no memory
  int pools = 0;      // alive
  int exports = 0;
  int given = -1;  // a descriptor, when it was asked last
  std::string asked_gpu;

 private:
  struct Pool {
    FakeGpuHost& owner;
    UniqueFd file;
    Mapping memory;
  };

  static int32_t open_pool(towline_backend* backend, const char* gpu, uint64_t bytes, int32_t given,
                           towline_landing_pool** pool, towline_landing_pool_info* info, char* reason,
                           size_t reason_bytes) {
    auto& self = *reinterpret_cast<FakeGpuHost*>(backend);
    self.asked_gpu = gpu;
    self.given = given;
    if (!self.fails.empty()) {
      (void)std::snprintf(reason, reason_bytes, "%s", self.fails.c_str());
      return TOWLINE_UNSUPPORTED;
    }
    UniqueFd file = create_memfd("fake-gpu", bytes);
    Mapping memory = Mapping::map_shared(file.get(), bytes, MapAccess::kReadWrite);
    auto* const made = new Pool{self, std::move(file), std::move(memory)};
    ++self.pools;
    *info = {};
    info->device = kDevice;
    info->address = reinterpret_cast<uint64_t>(made->memory.address());
    info->bytes = bytes;
    info->dma_buf = given < 0 ? made->file.get() : -1;
    std::strcpy(info->gpu, kGpu);
    *pool = reinterpret_cast<towline_landing_pool*>(made);
    return TOWLINE_OK;
  }
  static void close_pool(towline_landing_pool* pool) {
    auto* const closed = reinterpret_cast<Pool*>(pool);
    --closed->owner.pools;
    delete closed;
  }
  static int32_t read_pool(towline_landing_pool*, const towline_landing_piece* pieces, uint32_t count,
                           void* to, int32_t*) {
    auto* at = static_cast<uint8_t*>(to);
    for (uint32_t i = 0; i < count; ++i, at += pieces[i - 1].bytes)
      std::memcpy(at, reinterpret_cast<const void*>(pieces[i].address), pieces[i].bytes);
    return TOWLINE_OK;
  }

  // A copy of the region, whose first page is the second of the dma-buf; a memfd stands for that where the kernel makes none.
  static int32_t export_memory(towline_backend* backend, const towline_region_ref* region,
                               towline_landing_export* memory, char* reason, size_t reason_bytes) {
    auto& self = *reinterpret_cast<FakeGpuHost*>(backend);
    if (!self.fails.empty()) {
      (void)std::snprintf(reason, reason_bytes, "%s", self.fails.c_str());
      return TOWLINE_UNSUPPORTED;
    }
    ++self.exports;
    UniqueFd file = create_memfd("fake-gpu", kExportOffset + region->bytes);
    const Mapping all = Mapping::map_shared(file.get(), kExportOffset + region->bytes, MapAccess::kReadWrite);
    std::memcpy(all.address() + kExportOffset, reinterpret_cast<const void*>(region->address), region->bytes);
    *memory = {};
    try {
      memory->dma_buf = make_dma_buf(file.get(), kExportOffset + region->bytes).release();
    } catch (const core::Error&) {
      memory->dma_buf = file.release();
    }
    memory->offset = kExportOffset;
    return TOWLINE_OK;
  }

  towline_landing_table_v1 table_ = {};
  towline_host_v1_t services_ = {};
};

}  // namespace towline::tcpx::testing
