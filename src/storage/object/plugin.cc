// The plugin: a backend's tables.
#include <iterator>

#include "storage/object/backend.h"
#include "towline/plugin/backend.hpp"
#include "towline/towline.h"

namespace {

using namespace towline::plugin;  // NOLINT: short names for the list

constexpr towline_move_v1 kMoves[] = {move(kReadAndWrite, kinds(TOWLINE_MEMORY_DRAM),
                                           kinds(TOWLINE_MEMORY_OBJECT), TOWLINE_WHERE_SAME_PROCESS)};

template <class Backend>
towline_plugin_v1_t described(const char* name, const char* text) {
  return describe<Backend>(
      {
          .name = name,
          .version = "0.1.0",
          .text = text,
          .traits = TOWLINE_TRAIT_ONE_SIDED | TOWLINE_TRAIT_STORAGE,
          .moves = kMoves,
          .cost = 200,
          .worst_fence_ns = UINT64_MAX,
          .fence_reason = "the connection is closed; or the server answered, where it had got all of a WRITE",
      },
      [](char*, size_t) -> int32_t { return TOWLINE_OK; });
}

}  // namespace

extern "C" TOWLINE_API const towline_plugin_v1_t* towline_plugin_v1(uint32_t number) {
  static const towline_plugin_v1_t plugins[] = {
      described<towline::object::S3Backend>("object", "Objects of S3 and its like, over HTTP"),
      described<towline::object::AzureBackend>("azure", "Blobs of Azure, over HTTP"),
      described<towline::object::GcsBackend>("gcs", "Objects of Google Cloud Storage, over HTTP"),
  };
  return number < std::size(plugins) ? &plugins[number] : nullptr;
}
