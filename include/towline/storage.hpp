// Files and objects as regions, for C++20: RAII over storage.h.
//
//   towline::Region file = agent.register_storage("file:/data/kv.bin");
//   auto pages = agent.block_list(file.blocks(0, 4096).repeat(1024, 4096));
//   agent.plan(pages, mine).post().wait();
//
//   auto spilled = agent.register_storage("file:/data/kv", {.create = true, .name = "spilled", .layout = shape});
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

struct StorageEntry {
  std::string uri;
  StorageInfo info;
};

inline Region Agent::open_storage(const char* uri, int fd, const StorageOptions& options) const {
  auto native = detail::defaults<towline_storage_options_t>();
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
  native.name = detail::or_null(options.name);
  native.layout = options.layout ? &*options.layout : nullptr;
  towline_region_t* region = nullptr;
  detail::check(towline_storage_register(handle_.get(), uri, &native, &region));
  return Region{region, options.name};
}

inline Region Agent::register_storage(const std::string& uri, const StorageOptions& options) const {
  return open_storage(uri.c_str(), -1, options);
}
inline Region Agent::register_storage(const std::string& uri) const {
  return register_storage(uri, StorageOptions{});
}
inline Region Agent::register_storage(int fd, const StorageOptions& options) const {
  return open_storage(nullptr, fd, options);
}
inline Region Agent::register_storage(int fd) const { return register_storage(fd, StorageOptions{}); }

inline StorageInfo Agent::query_storage(const std::string& uri) const {
  auto info = detail::defaults<towline_storage_info_t>();
  detail::check(towline_storage_query(handle_.get(), uri.c_str(), &info));
  return info;
}

inline std::vector<StorageEntry> Agent::list_storage(const std::string& prefix, size_t limit) const {
  struct Found {
    std::vector<StorageEntry> entries;
    size_t limit;
  } found{{}, limit};
  detail::check(towline_storage_list(
      handle_.get(), prefix.c_str(),
      [](void* argument, const char* uri, const towline_storage_info_t* info) -> int32_t {
        auto& into = *static_cast<Found*>(argument);
        if (into.entries.size() < into.limit) into.entries.push_back({uri, *info});
        return into.entries.size() < into.limit ? 0 : 1;
      },
      &found));
  return std::move(found.entries);
}

}  // namespace v0
}  // namespace towline
