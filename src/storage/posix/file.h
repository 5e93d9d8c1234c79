// An open file or block device.
//
// A file that is read or written past the page cache has two descriptors: `direct` for aligned parts, and the
// plain one for the edges of a WRITE, whose pages also contain other bytes. Writing edges by the byte leaves
// the neighbours unchanged without a read-modify-write that could undo another writer's bytes, and lets the
// file have any length. Each page is written by one of the two as a whole: a cached page that is written back
// would undo a direct write to the same page.
//
// Replacing. The new file has no name (O_TMPFILE) until commit, or a hidden one beside the old where the file
// system knows no nameless files: a process that is killed leaves at most that. commit makes it durable,
// gives it a name and renames it over the old one. A symbolic link stays: its target is replaced.
//
// A new file is durable only once its folder, which holds its name, is durable too.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/os/unique_fd.h"
#include "towline/plugin/v1.h"

namespace towline::posix {

class File {
 public:
  // Throws plugin::Failure naming the path and what is wrong with it.
  explicit File(const towline_storage_args& args);
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  static towline_storage_attributes query(const char* uri);

  // Everything written is durable; a replacement takes its place. Throws plugin::Failure.
  void commit();
  // Syncs for a WRITE with a sync policy; returns an errno or 0. Blocks until a sync that began after the
  // WRITE's bytes were written has ended: `turn` is next_sync() from that time. All WRITEs whose bytes were
  // written before a sync share it. The kernel reports bytes that it could not write back only once:
  // `failures` is sync_failures() from before the WRITE began, and shows whether its bytes may be among them.
  // Any thread.
  [[nodiscard]] int sync(uint64_t failures, uint64_t turn) const noexcept;
  [[nodiscard]] uint64_t next_sync() const noexcept;
  [[nodiscard]] uint64_t sync_failures() const noexcept {
    return sync_failures_.load(std::memory_order_acquire);
  }

  [[nodiscard]] const towline_storage_attributes& attributes() const noexcept { return attributes_; }
  [[nodiscard]] int fd() const noexcept { return plain_.get(); }
  [[nodiscard]] int direct_fd() const noexcept { return direct_.get(); }  // -1: through the page cache
  [[nodiscard]] bool direct() const noexcept { return direct_.valid(); }
  // For the direct descriptor: the alignment of offsets and lengths, and of addresses in memory.
  [[nodiscard]] uint32_t offset_alignment() const noexcept { return offset_alignment_; }
  // The unit that a direct WRITE must cover completely: sectors and pages.
  [[nodiscard]] uint32_t write_unit() const noexcept { return write_unit_; }
  [[nodiscard]] uint32_t memory_alignment() const noexcept { return memory_alignment_; }
  [[nodiscard]] bool syncs() const noexcept { return sync_ != 0; }
  // Any thread.
  [[nodiscard]] bool committed() const noexcept { return committed_.load(std::memory_order_acquire); }
  [[nodiscard]] uint64_t id() const noexcept { return id_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  // Kernel AIO can't be asked not to wait here (RWF_NOWAIT). Any thread.
  void note_always_waits() const noexcept { always_waits_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool always_waits() const noexcept { return always_waits_.load(std::memory_order_relaxed); }

  // A buffered write took long: those of the next while are watched closely, which costs something. Any
  // thread.
  void note_long_write(uint64_t now_ns) const noexcept {
    watched_until_ns_.store(now_ns + kWatchForNs, std::memory_order_relaxed);
  }
  [[nodiscard]] bool watched(uint64_t now_ns) const noexcept {
    return now_ns < watched_until_ns_.load(std::memory_order_relaxed);
  }
  // A write blocked its thread: for a while writes are left to the pool. Any thread.
  void note_slow_write(uint64_t now_ns) const noexcept {
    slow_until_ns_.store(now_ns + kSlowForNs, std::memory_order_relaxed);
  }
  [[nodiscard]] bool was_slow() const noexcept { return slow_until_ns_.load(std::memory_order_relaxed) != 0; }
  [[nodiscard]] bool slow(uint64_t now_ns) const noexcept {
    const uint64_t until = slow_until_ns_.load(std::memory_order_relaxed);
    if (until == 0) return false;
    if (now_ns < until) return true;
    slow_until_ns_.store(0, std::memory_order_relaxed);
    return false;
  }

 private:
  static constexpr uint64_t kSlowForNs = 500'000'000;
  static constexpr uint64_t kWatchForNs = 10'000'000'000;

  void open_path(const std::string& path, const towline_storage_args& args);
  void open_replacement(const towline_storage_args& args);
  void remove_hidden() noexcept;
  void open_direct(int flags);
  void note_sync_failure(int error) const noexcept;
  void sync_name();
  void examine(const towline_storage_args& args);

  const uint64_t id_;
  std::string name_;    // for messages
  std::string target_;  // replacing: the path that it will have
  std::string hidden_;  // replacing: the name it has meanwhile; empty: none
  UniqueFd plain_;
  UniqueFd direct_;
  UniqueFd directory_;
  uint32_t sync_ = 0;
  bool replaces_ = false;
  bool unnamed_ = false;  // made here, and its folder may not have its name on the device yet
  std::atomic<bool> committed_{false};
  uint32_t offset_alignment_ = 1;
  uint32_t memory_alignment_ = 1;
  uint32_t write_unit_ = 1;
  towline_storage_attributes attributes_ = {};
  mutable std::atomic<bool> always_waits_{false};
  mutable std::mutex sync_mutex_;  // of the next three
  mutable std::condition_variable sync_ended_;
  mutable bool syncing_ = false;
  mutable uint64_t syncs_ = 0;              // that ended
  mutable std::atomic<int> sync_error_{0};  // the last one
  mutable std::atomic<uint64_t> sync_failures_{0};
  mutable std::atomic<uint64_t> slow_until_ns_{0};
  mutable std::atomic<uint64_t> watched_until_ns_{0};
};

}  // namespace towline::posix
