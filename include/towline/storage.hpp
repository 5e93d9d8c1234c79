// Files and objects as regions, for C++20: RAII over storage.h.
//
//   towline::Region file = towline::register_storage(agent, "file:/data/kv.bin");
//   auto pages = agent.block_list(towline::storage_blocks(file, 0, 4096).repeat(1024, 4096));
//   agent.plan(pages, mine).post().wait();
//
//   auto spilled = towline::register_storage(agent, "file:/data/kv", {.create = true, .name = "spilled", .layout = shape});
//   agent.copy(kv[layer][pages], spilled[layer][pages]).wait();
#pragma once

#include <towline/storage.h>
#include <towline/towline.hpp>

namespace towline {
inline namespace v0 {

enum class Sync : uint32_t {
  kNone = TOWLINE_SYNC_NONE,  // the operating system writes back when it likes
  kData = TOWLINE_SYNC_DATA,  // a WRITE is done when its bytes are on the device
  kFull = TOWLINE_SYNC_FULL,  // and the file's attributes
};

struct StorageOptions {
  std::optional<Access> access{};  // of transfers; by default read, and write if the file is new
  bool create = false;
  bool truncate = false;
  bool direct = false;       // bypass the page cache
  bool replace = false;      // a new file that replaces the old one at commit()
  bool conditional = false;  // objects: a WRITE fails (kStale) if another client has changed it
  Sync sync = Sync::kNone;
  uint32_t mode = 0;  // of a new file; 0: 0666 less the umask
  uint64_t bytes =
      0;  // the region's size; 0: the file's, or the layout's if it may be written and is smaller
  // As in RegionOptions: region[layer][pages] then names parts of the file. Peers are not told.
  std::string name{};
  std::optional<Layout> layout{};
};

using StorageInfo = towline_storage_info_t;

namespace detail {

[[nodiscard]] inline Region register_storage(const Agent& agent, const char* uri, int fd,
                                             const StorageOptions& options) {
  auto native = defaults<towline_storage_options_t>();
  native.access = options.access ? static_cast<uint32_t>(*options.access) : 0;
  native.flags = (options.create ? uint32_t{TOWLINE_STORAGE_CREATE} : 0) |
                 (options.truncate ? uint32_t{TOWLINE_STORAGE_TRUNCATE} : 0) |
                 (options.direct ? uint32_t{TOWLINE_STORAGE_DIRECT} : 0) |
                 (options.replace ? uint32_t{TOWLINE_STORAGE_REPLACE} : 0) |
                 (options.conditional ? uint32_t{TOWLINE_STORAGE_CONDITIONAL} : 0);
  native.sync = static_cast<uint32_t>(options.sync);
  native.mode = options.mode;
  native.bytes = options.bytes;
  native.fd = fd;
  native.name = or_null(options.name);
  native.layout = options.layout ? &*options.layout : nullptr;
  towline_region_t* region = nullptr;
  check(towline_storage_register(agent.native(), uri, &native, &region));
  return Region{region, options.name};
}

}  // namespace detail

// Opens and registers the file or object at the URI ("file:/path", "s3://bucket/key"). Throws Error. Blocks
// on the file system or the server.
[[nodiscard]] inline Region register_storage(const Agent& agent, const std::string& uri,
                                             const StorageOptions& options = {}) {
  return detail::register_storage(agent, uri.c_str(), -1, options);
}
// The same for an open descriptor, which is duplicated.
[[nodiscard]] inline Region register_storage(const Agent& agent, int fd, const StorageOptions& options = {}) {
  return detail::register_storage(agent, nullptr, fd, options);
}

// Describes a file or object; `exists` is 0 if it does not exist.
[[nodiscard]] inline StorageInfo query_storage(const Agent& agent, const std::string& uri) {
  auto info = detail::defaults<towline_storage_info_t>();
  detail::check(towline_storage_query(agent.native(), uri.c_str(), &info));
  return info;
}

struct StorageEntry {
  std::string uri;
  StorageInfo info;
};

// Everything whose URI has this prefix ("s3://bucket/model/"), in order; at most `limit`. Throws Error.
[[nodiscard]] inline std::vector<StorageEntry> list_storage(const Agent& agent, const std::string& prefix,
                                                            size_t limit = SIZE_MAX) {
  struct Found {
    std::vector<StorageEntry> entries;
    size_t limit;
  } found{{}, limit};
  detail::check(towline_storage_list(
      agent.native(), prefix.c_str(),
      [](void* argument, const char* uri, const towline_storage_info_t* info) -> int32_t {
        auto& into = *static_cast<Found*>(argument);
        if (into.entries.size() < into.limit) into.entries.push_back({uri, *info});
        return into.entries.size() < into.limit ? 0 : 1;
      },
      &found));
  return std::move(found.entries);
}

// Makes written data durable; a replacement replaces the old file. Throws Error.
inline void commit_storage(const Region& region, Deadline deadline = std::chrono::seconds{30}) {
  detail::check(towline_storage_commit(region.native(), deadline.remaining_ns()));
}

[[nodiscard]] inline RegionInfo region_info(const Region& region) {
  RegionInfo info{};
  detail::check(towline_region_info(region.native(), &info, sizeof info));
  return info;
}

// One block at `offset` of a registered file; repeat() makes more.
[[nodiscard]] inline Blocks storage_blocks(const Region& region, uint64_t offset, uint64_t length) {
  const RegionInfo info = region_info(region);
  return Blocks::at(info.address + offset, length, Kind{info.kind}, info.device);
}

}  // namespace v0
}  // namespace towline
