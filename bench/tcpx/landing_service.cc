// A backend that moves nothing. Landing (towline/plugin/landing.h) is a service for backends, so the harness takes it in
// the way that tcp does: as a plugin of an agent that has cuda, too.
#include <towline/plugin/landing.h>

#include <cstddef>

#include "towline/export.h"

namespace {

const towline_host_v1_t* host = nullptr;

int32_t open(const towline_host_v1_t* services, towline_backend** backend) {
  host = services;
  *backend = reinterpret_cast<towline_backend*>(&host);
  return TOWLINE_OK;
}
void close(towline_backend*) { host = nullptr; }

constexpr towline_memory_table_v1 kMemory = {
    .struct_size = sizeof(towline_memory_table_v1),
    .add = [](towline_backend*, const towline_region_args*, towline_registration**, void*,
              size_t*) -> int32_t { return TOWLINE_UNSUPPORTED; },
    .remove = [](towline_backend*, towline_registration*) {},
    .import = [](towline_connection*, const towline_region_args*, const void*, size_t, towline_import**,
                 char*) -> int32_t { return TOWLINE_UNSUPPORTED; },
    .unimport = [](towline_connection*, towline_import*) {},
    .reach = nullptr,
    .landing = nullptr};

constexpr towline_connection_table_v1 kConnection = {
    .struct_size = sizeof(towline_connection_table_v1),
    .address = [](towline_backend*, void*, size_t* bytes) -> int32_t {
      *bytes = 0;
      return TOWLINE_OK;
    },
    .probe = [](towline_backend*, const towline_identity*, const void*, size_t) -> int32_t {
      return TOWLINE_UNSUPPORTED;
    },
    .connect = [](towline_backend*, uint32_t, const towline_identity*, const void*, size_t, uint64_t, void*,
                  towline_connection**) -> int32_t { return TOWLINE_UNSUPPORTED; },
    .disconnect = [](towline_connection*) {},
    .describe = [](towline_connection*, char*, size_t) -> int32_t { return TOWLINE_UNSUPPORTED; },
    .id = nullptr,
    .settle = nullptr};

constexpr towline_data_table_v1 kData = {
    .struct_size = sizeof(towline_data_table_v1),
    .prepare = [](towline_connection*, const towline_prepare_args*, towline_prepared**) -> int32_t {
      return TOWLINE_UNSUPPORTED;
    },
    .unprepare = [](towline_prepared*) {},
    .submit = [](towline_prepared*, const towline_submit_args*) -> int32_t { return TOWLINE_UNSUPPORTED; },
    .send = [](towline_connection*, const void*, size_t) -> int32_t { return TOWLINE_UNSUPPORTED; },
    .cancel = [](towline_connection*, uint64_t) {},
    .progress = [](towline_backend*, uint32_t, uint64_t) -> uint32_t { return 0; },
    .arm = [](towline_backend*, uint32_t) -> uint32_t { return 0; },
    .disarm = [](towline_backend*, uint32_t) {},
    .settle = nullptr,
    .stream_capture = nullptr,
    .stream_submit = nullptr,
    .stream_wait = nullptr,
    .capture_runs = nullptr,
    .capture_forget = nullptr,
    .repick = nullptr,
    .view = nullptr,
    .view_forget = nullptr};

const void* table(const char* id, uint32_t version) {
  if (version != 1) return nullptr;
  switch (id[0]) {
    case 'm':
      return &kMemory;
    case 'c':
      return &kConnection;
    case 'd':
      return id[1] == 'a' ? &kData : nullptr;  // "data", not "directory"
    default:
      return nullptr;
  }
}

constexpr towline_move_v1 kMove = {sizeof(towline_move_v1), 0, 0, 0, TOWLINE_WHERE_SAME_PROCESS};

constexpr towline_plugin_v1_t kPlugin = {
    .struct_size = sizeof(towline_plugin_v1_t),
    .major = TOWLINE_PLUGIN_MAJOR,
    .traits = TOWLINE_TRAIT_LANDS,  // cuda opens before it and closes after it
    .name = "landing_service",
    .version = "1",
    .description = "gives a measuring program the landing of cuda",
    .moves = &kMove,
    .move_count = 1,
    .cost = 1000,
    .reserved = 0,
    .worst_fence_ns = 0,
    .fence_reason = "it moves nothing",
    .usable = [](char*, size_t) -> int32_t { return TOWLINE_OK; },
    .open = open,
    .close = close,
    .query_table = table,
    .describe = nullptr};

}  // namespace

extern "C" TOWLINE_API const towline_plugin_v1_t* towline_plugin_v1(uint32_t number) {
  return number == 0 ? &kPlugin : nullptr;
}

// Not TOWLINE_OK: the agent has no backend that copies GPU memory.
extern "C" TOWLINE_API int32_t towline_bench_landing(const towline_landing_table_v1** landing,
                                                     towline_backend** backend) {
  return host == nullptr ? TOWLINE_CLOSED : host->landing(host->context, landing, backend);
}
