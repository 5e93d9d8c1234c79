// The plugin: a backend's tables, and that for listings.
#include <cstring>
#include <exception>

#include "storage/object/backend.h"
#include "towline/plugin/backend.hpp"
#include "towline/towline.h"

namespace {

using towline::object::Backend;

int32_t list(towline_backend* handle, const char* prefix, towline_storage_found_fn found,
             void* argument) noexcept {
  auto& backend = *reinterpret_cast<Backend*>(handle);
  return towline::plugin::detail::guarded(backend.host(),
                                          [&] { return backend.storage_list(prefix, found, argument); });
}

constexpr towline_storage_list_table_v1 kListTable = {sizeof(towline_storage_list_table_v1), list};

const void* query(const char* id, uint32_t version) noexcept {
  if (version == 1 && std::strcmp(id, "storage_list") == 0) return &kListTable;
  return towline::plugin::detail::Tables<Backend>::query(id, version);
}

towline_plugin_v1_t make_plugin() {
  towline_plugin_v1_t plugin = towline::plugin::describe<Backend>(
      {
          .name = "object",
          .version = "0.1.0",
          .text = "Objects of S3 and its like, over HTTP",
          .traits = TOWLINE_TRAIT_ONE_SIDED | TOWLINE_TRAIT_SAME_PROCESS | TOWLINE_TRAIT_SAME_HOST |
                    TOWLINE_TRAIT_STORAGE,
          .kinds = 1u << TOWLINE_DRAM | 1u << TOWLINE_OBJECT,
          .cost = 200,
          .worst_fence_ns = UINT64_MAX,
          .fence_reason = "the connection is closed; or the server answered, where it had got all of a WRITE",
      },
      [](char*, size_t) -> int32_t { return TOWLINE_OK; });
  plugin.query_table = query;
  return plugin;
}

}  // namespace

extern "C" TOWLINE_API const towline_plugin_v1_t* towline_plugin_v1(void) {
  static const towline_plugin_v1_t plugin = make_plugin();
  return &plugin;
}
