#include "memory_table.h"

#include <fcntl.h>
#include <unistd.h>
#include <towline/storage.hpp>

#include <algorithm>
#include <vector>

#include "explain.h"
#include "log.h"

namespace towline::nixl {

namespace {

bool page_aligned(const nixlBasicDesc& desc) noexcept {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return desc.addr % page == 0 && desc.len % page == 0;
}

// Parses "rw,create:/path"; false if the text has another form.
bool read_path(const std::string& text, StorageOptions& options, std::string& path) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos || colon + 1 == text.size()) return false;
  bool access = false;
  for (size_t begin = 0; begin < colon;) {
    const size_t end = std::min(text.find(',', begin), colon);
    const std::string word = text.substr(begin, end - begin);
    if (begin == 0) {
      access = word == "ro" || word == "rw";
      options.access = word == "ro" ? Access::kRead : Access::kAll;
    } else if (word == "create") {
      options.create = true;
      options.mode = 0644;
    } else if (word == "direct") {
      options.direct = true;
    } else if (word == "sync") {
      options.sync = Sync::kFull;
    } else if (word != "noatime") {  // it only saves work in the file system
      return false;
    }
    begin = end + 1;
  }
  path = text.substr(colon + 1);
  return access;
}

// A file or block device by the path in its metadata, else by the descriptor that is its device.
Region register_file(const Agent& agent, const nixlBlobDesc& desc, const std::string& scheme) {
  StorageOptions options;
  options.bytes = desc.addr + desc.len;
  std::string path;
  if (read_path(desc.metaInfo, options, path)) return agent.register_storage(scheme + ":" + path, options);
  const int fd = static_cast<int>(desc.devId);
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) {
    throw Error{
        Status::kInvalidArgument,
        fmt::format("device {} of a file is no open descriptor, and its metadata '{}' is not of the form "
                    "'rw:path'",
                    desc.devId, desc.metaInfo)};
  }
  const int access = flags & O_ACCMODE;
  options.access = access == O_RDONLY ? Access::kRead : access == O_WRONLY ? Access::kWrite : Access::kAll;
  options.direct = (flags & O_DIRECT) != 0;
  // Vendors' libraries open files by name, and this names the one that is open.
  if (scheme != "file")
    return agent.register_storage(fmt::format("{}:/proc/self/fd/{}", scheme, fd), options);
  return agent.register_storage(fd, options);
}

Region register_one(const Agent& agent, nixl_mem_t type, const nixlBlobDesc& desc,
                    const MemoryOptions& options) {
  if (is_stored(type)) return register_file(agent, desc, options.scheme);
  if (type == OBJ_SEG) {
    StorageOptions object;
    object.access = Access::kAll;
    object.create = true;
    object.bytes = desc.addr + desc.len;
    return agent.register_storage(uri_of_object(options, desc), object);
  }
  const MemoryView memory = {reinterpret_cast<void*>(desc.addr), desc.len, Kind{kind_of(type)},
                             type == DRAM_SEG ? 0 : desc.devId};
  if (options.share && type == DRAM_SEG && page_aligned(desc)) {
    try {
      return agent.register_memory(memory, {.access = Access::kAll, .share = true});
    } catch (const Error& error) {
      log(LogLevel::kInfo,
          fmt::format("{:#x} with {} bytes stays where it is: {}", desc.addr, desc.len, error.what()));
    }
  }
  return agent.register_memory(memory, {.access = Access::kAll});
}

}  // namespace

std::string uri_of_object(const MemoryOptions& options, const nixlBlobDesc& desc) {
  return fmt::format("{}://{}/{}", options.scheme, options.bucket,
                     desc.metaInfo.empty() ? std::to_string(desc.devId) : desc.metaInfo);
}

uint32_t kind_of(nixl_mem_t type) noexcept {
  constexpr uint32_t kKinds[] = {TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_BLOCK,
                                 TOWLINE_MEMORY_OBJECT, TOWLINE_MEMORY_FILE};
  return type >= DRAM_SEG && type <= FILE_SEG ? kKinds[type] : UINT32_MAX;
}

void MemoryTable::add(const Agent& agent, const nixl_reg_dlist_t& descs, const MemoryOptions& options) {
  // If one fails, the ones already made are deregistered. No peer knows them yet, so this does not wait.
  std::vector<Region> made;
  made.reserve(static_cast<size_t>(descs.descCount()));
  for (const nixlBlobDesc& desc : descs) made.push_back(register_one(agent, descs.getType(), desc, options));
  std::lock_guard lock(mutex_);
  size_t i = 0;
  for (const nixlBlobDesc& desc : descs) {
    if (descs.getType() == DRAM_SEG && desc.devId != 0) dram_devices_.store(true, std::memory_order_release);
    size_t& longest = longest_[descs.getType()];
    longest = std::max(longest, desc.len);
    regions_.emplace(key_of(descs.getType(), desc), std::move(made[i++]));
  }
}

nixl_status_t MemoryTable::remove(const nixl_reg_dlist_t& descs, const MemoryOptions& options) {
  nixl_status_t result = NIXL_SUCCESS;
  for (const nixlBlobDesc& desc : descs) {
    const Key key = key_of(descs.getType(), desc);
    decltype(regions_)::node_type taken;
    {
      std::lock_guard lock(mutex_);
      if (const auto found = regions_.find(key); found != regions_.end()) taken = regions_.extract(found);
    }
    nixl_status_t status = NIXL_SUCCESS;
    if (taken.empty()) {
      status =
          fail(NIXL_ERR_NOT_FOUND, "deregisterMem: {:#x} with {} bytes on device {} is not registered so",
               desc.addr, desc.len, desc.devId);
    } else if (taken.mapped().deregister(std::chrono::nanoseconds{options.timeout_ns}) != Status::kOk) {
      status = fail(NIXL_ERR_BACKEND, "deregisterMem: {:#x} with {} bytes must not be reused yet: {}",
                    desc.addr, desc.len, towline::last_error());
      std::lock_guard lock(mutex_);
      regions_.insert(std::move(taken));
    }
    if (result == NIXL_SUCCESS) result = status;
  }
  return result;
}

const Region* MemoryTable::covering(const Key& key) const {
  if (const auto exact = regions_.find(key); exact != regions_.end()) return &exact->second;
  // Regions may overlap, so any that begins before may contain it. The nearest comes first.
  const auto longest = longest_.find(key.type);
  if (longest == longest_.end()) return nullptr;
  auto next = regions_.upper_bound({key.type, key.device, key.address, SIZE_MAX});
  while (next != regions_.begin()) {
    const auto& [at, region] = *--next;
    if (at.type != key.type || at.device != key.device) return nullptr;
    const size_t into = key.address - at.address;
    if (into > longest->second) return nullptr;
    if (into <= at.bytes && key.bytes <= at.bytes - into) return &region;
  }
  return nullptr;
}

bool MemoryTable::storage_blocks(nixl_mem_t type, const Rows& rows, std::vector<towline_blocks_t>& blocks,
                                 size_t& missing) const {
  std::lock_guard lock(mutex_);
  blocks.assign(rows.count, {});
  const Region* before = nullptr;
  RegionInfo info;
  for (size_t i = 0; i < rows.count; ++i) {
    const Region* region = covering({type, rows.device(i), rows.address(i), rows.length(i)});
    missing = i;
    if (region == nullptr) return false;
    blocks[i].address = rows.address(i);
    blocks[i].length = rows.length(i);
    if (region != before) info = region->info();
    before = region;
    blocks[i].device = info.device;
    blocks[i].kind = info.kind;  // a device may be given as a file, and a file as a device
  }
  return true;
}

bool MemoryTable::has_devices(const Rows& rows, size_t& missing) const {
  bool plain = !dram_devices_.load(std::memory_order_acquire);
  for (size_t i = 0; plain && i < rows.differing(); ++i) plain = rows.device(i) == 0;
  if (plain) return true;
  std::lock_guard lock(mutex_);
  for (missing = 0; missing < rows.count; ++missing) {
    if (covering({DRAM_SEG, rows.device(missing), rows.address(missing), rows.length(missing)}) == nullptr)
      return false;
  }
  return true;
}

std::string MemoryTable::metadata(const Agent& agent, const nixl_reg_dlist_t& descs) const {
  std::lock_guard lock(mutex_);
  std::vector<towline_region_t*> regions;
  regions.reserve(static_cast<size_t>(descs.descCount()));
  for (const nixlBlobDesc& desc : descs) {
    const Region* region = covering(key_of(descs.getType(), desc));
    if (region == nullptr) {
      throw Error{Status::kNotFound, fmt::format("{:#x} with {} bytes on device {} is not registered",
                                                 desc.addr, desc.len, desc.devId)};
    }
    regions.push_back(region->native());
  }
  std::ranges::sort(regions);
  regions.erase(std::unique(regions.begin(), regions.end()), regions.end());
  return detail::read_sized<std::string>([&](void* blob, size_t capacity, size_t* needed) {
    return towline_agent_metadata(agent.native(), regions.data(), regions.size(), blob, capacity, needed);
  });
}

std::vector<nixlBasicDesc> MemoryTable::some_of_each_gpu() const {
  std::lock_guard lock(mutex_);
  std::vector<nixlBasicDesc> result;
  for (const auto& [key, region] : regions_)
    if (key.type == VRAM_SEG && key.bytes > 1 && (result.empty() || result.back().devId != key.device))
      result.emplace_back(key.address, key.bytes, key.device);
  return result;
}

void MemoryTable::clear() {
  std::lock_guard lock(mutex_);
  regions_.clear();
  longest_.clear();
}

}  // namespace towline::nixl
