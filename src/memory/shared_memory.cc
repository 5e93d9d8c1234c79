#include "memory/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <towline/towline.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>

#include "base/check.h"
#include "base/error.h"
#include "base/os/topology.h"
#include "memory/mapping_lookup.h"

namespace towline {

namespace {

constexpr uint64_t kMaxBytes = (uint64_t{1} << 63) - 1;
constexpr uint64_t kSliceBytes = 64 << 20;  // of moving in place: as much memory as is needed twice

uint64_t page_bytes() noexcept {
  static const auto bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

uint64_t as_number(const void* address) noexcept { return reinterpret_cast<uint64_t>(address); }

// The memory that Towline put onto memfds, and the files that it holds open for other shared mappings.
class Registry {
 public:
  struct Entry {
    uint64_t bytes;
    std::shared_ptr<const SharedFile> file;
    std::weak_ptr<InPlaceShare> in_place;  // none: allocated
    bool allocated;
  };
  using Entries = std::map<uint64_t, Entry>;

  // Never destroyed: memory may be freed by destructors that run after main.
  static Registry& of_process() {
    static auto* const registry = new Registry;
    return *registry;
  }

  std::mutex& mutex() noexcept { return mutex_; }
  Entries& entries() noexcept { return entries_; }

  // The entry that begins last of those that begin before `end`, if it reaches beyond `begin`.
  Entries::iterator find_touching(uint64_t begin, uint64_t end) noexcept {
    auto next = entries_.lower_bound(end);
    if (next == entries_.begin()) return entries_.end();
    --next;
    return next->first + next->second.bytes > begin ? next : entries_.end();
  }

  std::shared_ptr<const SharedFile> find_file(const MemoryMapping& mapping) {
    const auto found = files_.find({mapping.device, mapping.inode});
    return found == files_.end() ? nullptr : found->second.lock();
  }

  void keep_file(const MemoryMapping& mapping, const std::shared_ptr<const SharedFile>& file) {
    if (files_.size() >= prune_at_) {
      std::erase_if(files_, [](const auto& entry) { return entry.second.expired(); });
      prune_at_ = 2 * files_.size() + 64;
    }
    files_[{mapping.device, mapping.inode}] = file;
  }

 private:
  std::mutex mutex_;
  Entries entries_;
  std::map<std::pair<dev_t, uint64_t>, std::weak_ptr<const SharedFile>>
      files_;  // while held, no inode is reused
  size_t prune_at_ = 64;
};

// How often this process made a child that shares its shared memory.
std::atomic<uint64_t> forks{0};

void count_forks() {
  static const int registered = ::pthread_atfork(
      nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); }, nullptr);
  if (registered != 0) fail_errno(registered, "cannot watch for forks");
}

uint64_t smallest_huge_page() {
  const HostTopology topology = read_host_topology();
  if (topology.huge_pages.empty())
    fail(Status::kUnsupported, "this kernel offers no huge pages: allocate without TOWLINE_ALLOCATE_HUGE");
  return topology.huge_pages.front().bytes;
}

}  // namespace

// ---- allocated

std::unique_ptr<SharedMemory> SharedMemory::allocate(uint64_t bytes, uint32_t flags) {
  if (bytes == 0)
    fail(Status::kInvalidArgument, "cannot allocate 0 bytes of shared memory: ask for at least 1");
  if ((flags & ~uint32_t{TOWLINE_ALLOCATE_HUGE}) != 0)
    fail(Status::kInvalidArgument,
         "allocating shared memory with flags {:#x}: only {:#x} (huge pages) is known", flags,
         static_cast<uint32_t>(TOWLINE_ALLOCATE_HUGE));
  const bool huge = (flags & TOWLINE_ALLOCATE_HUGE) != 0;
  MemfdOptions options;
  if (huge) options.huge_page_bytes = smallest_huge_page();
  const uint64_t unit = huge ? options.huge_page_bytes : page_bytes();
  if (bytes > kMaxBytes - unit)
    fail(Status::kOutOfRange, "cannot allocate {} bytes of shared memory: sizes end at 2^63", bytes);
  const uint64_t mapped_bytes = (bytes + unit - 1) / unit * unit;
  UniqueFd fd = create_memfd("towline", mapped_bytes, options);
  Mapping mapping = Mapping::map_shared(fd.get(), mapped_bytes, MapAccess::kReadWrite);
  auto file = std::make_shared<const SharedFile>(std::move(fd), true, SharedFile::Maker::kTowline);

  std::unique_ptr<SharedMemory> memory(new SharedMemory(std::move(mapping), bytes));
  Registry& registry = Registry::of_process();
  std::lock_guard lock(registry.mutex());
  registry.entries()[as_number(memory->address())] = {mapped_bytes, std::move(file), {}, true};
  return memory;
}

SharedMemory::~SharedMemory() {
  Registry& registry = Registry::of_process();
  std::lock_guard lock(registry.mutex());
  registry.entries().erase(as_number(address()));
}

// ---- moved in place

namespace {

// Throws unless all of the range is what can be moved without anyone noticing.
void check_can_move(uint64_t begin, uint64_t bytes) {
  MappingReader reader(begin);
  for (uint64_t at = begin; at < begin + bytes;) {
    const auto mapping = reader.next();
    if (!reader.problem().empty())
      fail(Status::kUnsupported, "cannot share memory in place: {}", reader.problem());
    if (!mapping || mapping->begin > at)
      fail(Status::kInvalidArgument, "cannot share [{:#x}, {:#x}) in place: nothing is mapped at {:#x}",
           begin, begin + bytes, at);
    const char* problem = nullptr;
    if (mapping->shared)
      problem = "is shared already: register it without TOWLINE_REGION_SHARE";
    else if (mapping->inode != 0)
      problem = "is mapped from a file: copy it into memory of towline_memory_allocate";
    else if (!mapping->readable || !mapping->writable)
      problem = "is not readable and writable (a guard?)";
    else if (mapping->executable)
      problem = "is executable";
    else if (mapping->name.starts_with("[stack"))
      problem = "is a stack";
    else if (mapping->name.starts_with('[') && !mapping->name.starts_with("[anon") &&
             mapping->name != "[heap]")
      problem = "belongs to the kernel";
    if (problem != nullptr)
      fail(Status::kInvalidArgument, "cannot share [{:#x}, {:#x}) in place: [{:#x}, {:#x}) {} {}", begin,
           begin + bytes, mapping->begin, mapping->end, mapping->name, problem);
    at = mapping->end;
  }
}

// 0 or an errno. The kernel does the copying: memory that cannot be read gives EFAULT instead of a signal.
// Asked of it directly, since AddressSanitizer's pwrite refuses a page that holds somebody's red zones, which
// may move too.
int write_all(int fd, const uint8_t* from, uint64_t bytes, uint64_t offset) noexcept {
  while (bytes != 0) {
    const long done = ::syscall(SYS_pwrite64, fd, from, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    if (done == 0) return EIO;
    from += done;
    offset += static_cast<uint64_t>(done);
    bytes -= static_cast<uint64_t>(done);
  }
  return 0;
}

int read_all(int fd, uint8_t* to, uint64_t bytes, uint64_t offset) noexcept {
  while (bytes != 0) {
    const long done = ::syscall(SYS_pread64, fd, to, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    if (done == 0) return EIO;
    to += done;
    offset += static_cast<uint64_t>(done);
    bytes -= static_cast<uint64_t>(done);
  }
  return 0;
}

// 0 or an errno, with the slice as it was before. It is read-only meanwhile: a thread that writes waits, and no byte is lost.
int move_slice(uint8_t* address, uint64_t bytes, int fd, uint64_t offset) noexcept {
  if (::mprotect(address, bytes, PROT_READ) != 0) return errno;
  int error = write_all(fd, address, bytes, offset);
  if (error == 0 && ::mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                           static_cast<off_t>(offset)) == MAP_FAILED)
    error = errno;
  if (error != 0) ::mprotect(address, bytes, PROT_READ | PROT_WRITE);
  return error;
}

int move_slice_back(uint8_t* address, uint64_t bytes, int fd, uint64_t offset, bool free_pages) noexcept {
  void* fresh = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fresh == MAP_FAILED) return errno;
  int error = ::mprotect(address, bytes, PROT_READ) != 0 ? errno : 0;
  if (error == 0) error = read_all(fd, static_cast<uint8_t*>(fresh), bytes, offset);
  if (error == 0 && ::mremap(fresh, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, address) == MAP_FAILED)
    error = errno;
  if (error != 0) {
    ::mprotect(address, bytes, PROT_READ | PROT_WRITE);
    ::munmap(fresh, bytes);
    return error;
  }
  if (free_pages)
    ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                static_cast<off_t>(bytes));
  return 0;
}

int move_back(uint8_t* address, uint64_t bytes, int fd, bool free_pages) noexcept {
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t slice = std::min(kSliceBytes, bytes - done);
    if (const int error = move_slice_back(address + done, slice, fd, done, free_pages); error != 0)
      return error;
    done += slice;
  }
  return 0;
}

// Does the file still back the whole range, from its beginning?
bool still_backs(const SharedFile& file, const void* address, uint64_t bytes) {
  const SharedMapping mapping = find_shared_mapping(address, bytes);
  struct stat status = {};
  return mapping.found && mapping.offset == 0 && ::fstat(file.fd(), &status) == 0 &&
         status.st_ino == mapping.first.inode && status.st_dev == mapping.first.device;
}

}  // namespace

InPlaceShare::InPlaceShare(void* address, uint64_t bytes, std::shared_ptr<const SharedFile> file) noexcept
    : address_(address),
      bytes_(bytes),
      file_(std::move(file)),
      process_(::getpid()),
      forks_(forks.load(std::memory_order_relaxed)) {}

InPlaceShare::~InPlaceShare() {
  if (::getpid() != process_) return;  // a child of fork leaves its parent's memory alone
  Registry& registry = Registry::of_process();
  std::lock_guard lock(registry.mutex());
  // A new share of the same memory may have taken the entry over between the last release and this.
  const auto entry = registry.entries().find(as_number(address_));
  if (entry == registry.entries().end() || entry->second.file != file_) return;
  registry.entries().erase(entry);
  const bool alone = forks.load(std::memory_order_relaxed) == forks_;
  if (still_backs(*file_, address_, bytes_))
    (void)move_back(static_cast<uint8_t*>(address_), bytes_, file_->fd(), alone);
}

std::shared_ptr<InPlaceShare> share_in_place(void* address, uint64_t bytes) {
  const uint64_t begin = as_number(address);
  if (address == nullptr || bytes == 0)
    fail(Status::kInvalidArgument, "cannot share {} bytes at {:#x} in place: there must be some memory",
         bytes, begin);
  if (bytes > kMaxBytes || begin > kMaxBytes - bytes)
    fail(Status::kOutOfRange, "cannot share {} bytes at {:#x} in place: the range ends beyond 2^63", bytes,
         begin);
  if (begin % page_bytes() != 0 || bytes % page_bytes() != 0)
    fail(Status::kInvalidArgument,
         "cannot share {} bytes at {:#x} in place: address and size must be multiples of the page, {} bytes",
         bytes, begin, page_bytes());
  count_forks();
  Registry& registry = Registry::of_process();
  std::shared_ptr<InPlaceShare> share;  // outlives the lock, which its destructor takes
  std::lock_guard lock(registry.mutex());
  if (const auto touching = registry.find_touching(begin, begin + bytes);
      touching != registry.entries().end()) {
    const auto& [there, entry] = *touching;
    const bool inside = begin >= there && begin + bytes <= there + entry.bytes;
    if (inside && entry.allocated) return nullptr;
    if (inside) {
      share = entry.in_place.lock();
      if (share != nullptr) return share;
      // Its last holder is about to undo it and waits for the lock: take the memory over instead.
      auto file = std::make_shared<const SharedFile>(duplicate_fd(entry.file->fd()), true,
                                                     SharedFile::Maker::kTowline);
      share.reset(new InPlaceShare(reinterpret_cast<void*>(there), entry.bytes, file));
      share->forks_ = UINT64_MAX;  // which forks share it is not known
      touching->second.file = std::move(file);
      touching->second.in_place = share;
      return share;
    }
    fail(Status::kBusy, "cannot share [{:#x}, {:#x}) in place: [{:#x}, {:#x}) of it is shared already", begin,
         begin + bytes, there, there + entry.bytes);
  }
  check_can_move(begin, bytes);

  MemfdOptions options;
  options.reserve = false;  // writing takes the pages, slice by slice
  auto file = std::make_shared<const SharedFile>(create_memfd("towline-in-place", bytes, options), true,
                                                 SharedFile::Maker::kTowline);
  share.reset(new InPlaceShare(address, bytes, file));
  registry.entries()[begin] = {bytes, file, share, false};
  auto* const memory = static_cast<uint8_t*>(address);
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t slice = std::min(kSliceBytes, bytes - done);
    const int error = move_slice(memory + done, slice, file->fd(), done);
    if (error != 0) {
      registry.entries().erase(begin);  // so that ~InPlaceShare does nothing
      if (done != 0) (void)move_back(memory, done, file->fd(), true);
      fail_errno(error, "cannot share [{:#x}, {:#x}) in place: moving {} bytes at {:#x} onto shared memory",
                 begin, begin + bytes, slice, begin + done);
    }
    done += slice;
  }
  return share;
}

// ---- found

namespace {

// Finds memory that Towline made; null if the range is not inside one piece of it.
SharedRange find_registered(Registry& registry, const void* address, uint64_t bytes) {
  const uint64_t begin = as_number(address);
  const auto touching = registry.find_touching(begin, begin + bytes);
  if (touching == registry.entries().end()) return {};
  const auto& [there, entry] = *touching;
  if (begin < there || begin + bytes > there + entry.bytes) return {};
  if (entry.allocated) return {entry.file, begin - there};
  // Memory moved in place is the application's, which may have unmapped it since. Without a holder it is
  // about to be moved back, and peers' writes to the file would then miss the memory. So everyone who gets
  // the file becomes a holder.
  if (!still_backs(*entry.file, reinterpret_cast<void*>(there), entry.bytes)) return {};
  std::shared_ptr<InPlaceShare> share = entry.in_place.lock();
  if (share == nullptr) return {};
  const SharedFile* const file = entry.file.get();
  return {std::shared_ptr<const SharedFile>(std::move(share), file), begin - there};
}

}  // namespace

SharedRange find_shared_range(const void* address, uint64_t bytes, std::string& reason) {
  const uint64_t begin = as_number(address);
  if (bytes == 0 || begin + bytes < begin) {
    reason = "no range of addresses";
    return {};
  }
  Registry& registry = Registry::of_process();
  std::lock_guard lock(registry.mutex());
  if (SharedRange range = find_registered(registry, address, bytes); range.file != nullptr) return range;

  const SharedMapping mapping = find_shared_mapping(address, bytes);
  if (!mapping.found) {
    reason = mapping.reason;
    return {};
  }
  std::shared_ptr<const SharedFile> file = registry.find_file(mapping.first);
  if (file == nullptr) {
    MappedFile opened = open_mapped_file(mapping.first);
    if (!opened.fd.valid()) {
      reason = opened.reason;
      return {};
    }
    file =
        std::make_shared<const SharedFile>(std::move(opened.fd), opened.writable, SharedFile::Maker::kOther);
    registry.keep_file(mapping.first, file);
  }
  const uint64_t size = file_bytes(file->fd());
  if (mapping.offset > size || bytes > size - mapping.offset) {
    reason = fmt::format("the mapped file {} has {} bytes, the range ends at {}", mapping.first.name, size,
                         mapping.offset + bytes);
    return {};
  }
  return {std::move(file), mapping.offset};
}

}  // namespace towline
