#include "storage/posix/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "base/id.h"
#include "towline/plugin/backend.hpp"
#include "towline/storage.h"

namespace towline::posix {

namespace {

constexpr std::string_view kScheme = "file:";
constexpr uint32_t kUsualAlignment = 4096;
constexpr uint32_t kLargestAlignment = 64 << 10;

template <class... Args>
[[noreturn]] void refuse(Status status, fmt::format_string<Args...> format, Args&&... args) {
  throw plugin::Failure(status, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void refuse_errno(int error, fmt::format_string<Args...> format, Args&&... args) {
  throw plugin::Failure(status_from_errno(error),
                        fmt::format(format, std::forward<Args>(args)...) + ": " + errno_text(error));
}

std::string path_of(const char* uri) {
  std::string_view path = uri;
  if (!path.starts_with(kScheme)) refuse(Status::kUnsupported, "'{}' is not a file: URI", uri);
  path.remove_prefix(kScheme.size());
  if (path.starts_with("//")) {  // file://host/path and file:///path
    const size_t slash = path.find('/', 2);
    const std::string_view host = path.substr(2, slash == std::string_view::npos ? slash : slash - 2);
    if (slash == std::string_view::npos || !(host.empty() || host == "localhost"))
      refuse(Status::kInvalidArgument, "'{}' names a host: file: URIs are of this host, \"file:/path\"", uri);
    path.remove_prefix(slash);
  }
  if (path.empty()) refuse(Status::kInvalidArgument, "'{}' names no path", uri);
  return std::string(path);
}

int access_flags(uint32_t access) noexcept {
  if (access == TOWLINE_ACCESS_READ) return O_RDONLY;
  return access == TOWLINE_ACCESS_WRITE ? O_WRONLY : O_RDWR;
}

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// The target of a path that may be a symbolic link, itself or to another one.
std::string followed(const std::string& path) {
  struct stat found = {};
  if (::lstat(path.c_str(), &found) != 0 || !S_ISLNK(found.st_mode)) return path;
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
  if (real == nullptr)
    refuse_errno(errno, "{} is a symbolic link, and replacing follows it to what it names: name a file",
                 path);
  return real.get();
}

std::string name_in_folder(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Beside `target`, and with its name where that is not too long.
std::string hidden_name(const std::string& target) {
  const std::string id = Id::random().to_hex();
  const std::string name = fmt::format(".{}.{}.towline", name_in_folder(target), id);
  return name.size() <= NAME_MAX ? name : fmt::format(".{}.towline", id);
}

std::string own_link(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

uint64_t block_device_bytes(int fd) noexcept {
  uint64_t bytes = 0;
  return ::ioctl(fd, BLKGETSIZE64, &bytes) == 0 ? bytes : 0;
}

// Throws for what is neither a file nor a block device.
towline_storage_attributes attributes_of(const struct stat& found, const std::string& name) {
  towline_storage_attributes attributes = {};
  attributes.struct_size = sizeof attributes;
  attributes.exists = 1;
  attributes.modified_ns = static_cast<uint64_t>(found.st_mtim.tv_sec) * 1'000'000'000 +
                           static_cast<uint64_t>(found.st_mtim.tv_nsec);
  attributes.bytes = static_cast<uint64_t>(found.st_size);
  if (S_ISREG(found.st_mode))
    attributes.kind = TOWLINE_MEMORY_FILE;
  else if (S_ISBLK(found.st_mode))
    attributes.kind = TOWLINE_MEMORY_BLOCK;
  else
    refuse(Status::kInvalidArgument, "{} is {}, neither a file nor a block device", name,
           S_ISDIR(found.st_mode) ? "a directory" : "something else");
  return attributes;
}

uint64_t next_id() noexcept {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

File::File(const towline_storage_args& args) : id_(next_id()), sync_(args.sync) {
  replaces_ = (args.flags & TOWLINE_STORAGE_REPLACE) != 0;
  if ((args.flags & TOWLINE_STORAGE_CONDITIONAL) != 0)
    refuse(Status::kUnsupported,
           "files know no conditional writes (TOWLINE_STORAGE_CONDITIONAL): objects do");
  if (args.uri == nullptr) {
    name_ = fmt::format("descriptor {}", args.fd);
    if (replaces_ || (args.flags & (TOWLINE_STORAGE_CREATE | TOWLINE_STORAGE_TRUNCATE)) != 0)
      refuse(Status::kInvalidArgument, "{}: creating, emptying and replacing need a path", name_);
    plain_.reset(::fcntl(args.fd, F_DUPFD_CLOEXEC, 0));
    if (!plain_) refuse_errno(errno, "{}", name_);
    const int mode = ::fcntl(plain_.get(), F_GETFL) & O_ACCMODE;
    const bool enough = mode == O_RDWR || access_flags(args.access) == mode;
    if (!enough)
      refuse(Status::kPermissionDenied, "{} is not open for {}", name_,
             mode == O_RDONLY ? "writing" : "reading");
  } else {
    name_ = path_of(args.uri);
    if (replaces_)
      open_replacement(args);
    else
      open_path(name_, args);
  }
  try {
    examine(args);
    if (sync_ != 0) sync_name();
  } catch (...) {
    remove_hidden();
    throw;
  }
}

File::~File() { remove_hidden(); }

void File::remove_hidden() noexcept {
  if (!hidden_.empty()) (void)::unlinkat(directory_.get(), hidden_.c_str(), 0);
}

void File::open_path(const std::string& path, const towline_storage_args& args) {
  int flags = access_flags(args.access) | O_CLOEXEC;
  if ((args.flags & TOWLINE_STORAGE_CREATE) != 0) flags |= O_CREAT;
  if ((args.flags & TOWLINE_STORAGE_TRUNCATE) != 0) flags |= O_TRUNC;
  flags |= O_NONBLOCK;  // a pipe must not hold us up
  if ((flags & O_CREAT) != 0) {
    plain_.reset(::open(path.c_str(), flags & ~O_CREAT));
    unnamed_ = !plain_ && errno == ENOENT;
  }
  if (!plain_) plain_.reset(::open(path.c_str(), flags, args.mode));
  if (!plain_) {
    const int error = errno;
    if (error == EISDIR) refuse(Status::kInvalidArgument, "{} is a directory", path);
    if (error == ENXIO) refuse(Status::kInvalidArgument, "{} is neither a file nor a block device", path);
    refuse_errno(error, "opening {}", path);
  }
  const int usual = ::fcntl(plain_.get(), F_GETFL) & ~O_NONBLOCK;
  // Checking whether to update the access time takes a tenth of a cached read of 4 KiB. A user without
  // permission for O_NOATIME on this file reads without it.
  if (::fcntl(plain_.get(), F_SETFL, usual | O_NOATIME) != 0) (void)::fcntl(plain_.get(), F_SETFL, usual);
}

void File::open_replacement(const towline_storage_args& args) {
  target_ = followed(name_);
  struct stat old = {};
  const bool exists = ::stat(target_.c_str(), &old) == 0;
  if (exists && !S_ISREG(old.st_mode)) refuse(Status::kInvalidArgument, "{} is not a file", target_);
  if (exists && ::access(target_.c_str(), W_OK) != 0) refuse_errno(errno, "replacing {}", target_);
  const std::string directory = directory_of(target_);
  directory_.reset(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory_) refuse_errno(errno, "opening the directory {}", directory);
  plain_.reset(::openat(directory_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, args.mode));
  if (!plain_) {
    hidden_ = hidden_name(target_);
    plain_.reset(
        ::openat(directory_.get(), hidden_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, args.mode));
    if (!plain_) {
      const int error = errno;
      hidden_.clear();
      refuse_errno(error, "making a file beside {}", target_);
    }
  }
  if (exists) (void)::fchmod(plain_.get(), old.st_mode & 07777);
}

void File::open_direct(int flags) {
  direct_.reset(::open(own_link(plain_.get()).c_str(), flags | O_DIRECT | O_CLOEXEC));
  if (!direct_) {
    const int error = errno;
    if (error == EINVAL) refuse(Status::kUnsupported, "{}: its file system has no direct I/O", name_);
    refuse_errno(error, "opening {} for direct I/O", name_);
  }
  offset_alignment_ = memory_alignment_ = kUsualAlignment;
  struct statx found = {};
  if (::statx(direct_.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &found) == 0 &&
      (found.stx_mask & STATX_DIOALIGN) != 0) {
    if (found.stx_dio_offset_align == 0)
      refuse(Status::kUnsupported, "{}: its file system has no direct I/O for this file", name_);
    offset_alignment_ = found.stx_dio_offset_align;
    memory_alignment_ = std::max<uint32_t>(found.stx_dio_mem_align, 1);
  }
  if (offset_alignment_ > kLargestAlignment || memory_alignment_ > kLargestAlignment)
    refuse(Status::kUnsupported, "{}: direct I/O wants an alignment of {} bytes, {} are the most", name_,
           std::max(offset_alignment_, memory_alignment_), kLargestAlignment);
  write_unit_ = std::max(offset_alignment_, static_cast<uint32_t>(::sysconf(_SC_PAGESIZE)));
}

void File::examine(const towline_storage_args& args) {
  struct stat found = {};
  if (::fstat(plain_.get(), &found) != 0) refuse_errno(errno, "looking at {}", name_);
  attributes_ = attributes_of(found, name_);
  if (attributes_.kind == TOWLINE_MEMORY_BLOCK) {
    attributes_.bytes = block_device_bytes(plain_.get());
    // Opening such a device for writing succeeds.
    int read_only = 0;
    if ((args.access & TOWLINE_ACCESS_WRITE) != 0 && ::ioctl(plain_.get(), BLKROGET, &read_only) == 0 &&
        read_only != 0)
      refuse(Status::kPermissionDenied, "{} is a read-only device", name_);
  }
  const int flags = ::fcntl(plain_.get(), F_GETFL);
  const bool was_direct = (flags & O_DIRECT) != 0;
  if ((args.flags & TOWLINE_STORAGE_DIRECT) != 0 || was_direct)
    open_direct(flags & (args.uri != nullptr ? O_ACCMODE | O_NOATIME : O_ACCMODE));
  // A descriptor we were given may be direct, appending or non-blocking: ours must not be, the other stays as
  // it is.
  if ((flags & (O_DIRECT | O_APPEND | O_NONBLOCK)) != 0) {
    UniqueFd anew(::open(own_link(plain_.get()).c_str(), (flags & O_ACCMODE) | O_CLOEXEC));
    if (!anew) refuse_errno(errno, "opening {} anew, without O_DIRECT, O_APPEND and O_NONBLOCK", name_);
    plain_ = std::move(anew);
  }
}

towline_storage_attributes File::query(const char* uri) {
  const std::string path = path_of(uri);
  struct stat found = {};
  if (::stat(path.c_str(), &found) != 0) {
    const int error = errno;
    if (error != ENOENT && error != ENOTDIR) refuse_errno(error, "looking at {}", path);
    towline_storage_attributes nothing = {};
    nothing.struct_size = sizeof nothing;
    return nothing;
  }
  towline_storage_attributes attributes = attributes_of(found, path);
  if (attributes.kind == TOWLINE_MEMORY_BLOCK) {
    const UniqueFd device(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (device) attributes.bytes = block_device_bytes(device.get());
  }
  return attributes;
}

void File::note_sync_failure(int error) const noexcept {
  sync_error_.store(error, std::memory_order_relaxed);
  sync_failures_.fetch_add(1, std::memory_order_release);
}

void File::sync_name() {
  if (!unnamed_) return;
  // By the way it was opened a link may have been followed.
  std::array<char, PATH_MAX> path = {};
  const ssize_t length = ::readlink(own_link(plain_.get()).c_str(), path.data(), path.size());
  if (length < 0) refuse_errno(errno, "looking where {} is", name_);
  const std::string folder = directory_of({path.data(), static_cast<size_t>(length)});
  const UniqueFd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // A folder that may be written and not be read is synced with all of its file system.
  if ((opened ? ::fsync(opened.get()) : ::syncfs(plain_.get())) != 0)
    refuse_errno(errno, "writing {}, the folder of {}, to its device", folder, name_);
  unnamed_ = false;
}

uint64_t File::next_sync() const noexcept {
  const std::lock_guard lock(sync_mutex_);
  return syncs_ + (syncing_ ? 2 : 1);
}

int File::sync(uint64_t failures, uint64_t turn) const noexcept {
  std::unique_lock lock(sync_mutex_);
  while (syncs_ < turn) {
    if (syncing_) {
      sync_ended_.wait(lock);
      continue;
    }
    syncing_ = true;
    lock.unlock();
    const int result = sync_ == TOWLINE_SYNC_DATA ? ::fdatasync(plain_.get()) : ::fsync(plain_.get());
    const int error = result == 0 ? 0 : errno;
    if (error != 0) note_sync_failure(error);
    lock.lock();
    syncing_ = false;
    ++syncs_;
    sync_ended_.notify_all();
  }
  return failures == sync_failures() ? 0 : sync_error_.load(std::memory_order_relaxed);
}

void File::commit() {
  if (committed() && replaces_) refuse(Status::kAlreadyExists, "{} has been committed already", name_);
  // Asked again, the kernel would say that all is well with what it has lost.
  if (replaces_ && sync_failures() != 0)
    refuse(Status::kIo,
           "{}: writing its bytes to the device has failed, and they may be gone: register it anew", name_);
  if (::fsync(plain_.get()) != 0) {
    const int error = errno;
    note_sync_failure(error);
    refuse_errno(error, "writing {} to its device", name_);
  }
  if (!replaces_) return sync_name();
  const std::string base = name_in_folder(target_);
  if (hidden_.empty()) {
    // A nameless file can't be linked over another: it gets a name of its own first.
    const std::string name = hidden_name(target_);
    if (::linkat(AT_FDCWD, own_link(plain_.get()).c_str(), directory_.get(), name.c_str(),
                 AT_SYMLINK_FOLLOW) != 0)
      refuse_errno(errno, "naming the file that replaces {}", target_);
    hidden_ = name;
  }
  if (::renameat(directory_.get(), hidden_.c_str(), directory_.get(), base.c_str()) != 0)
    refuse_errno(errno, "renaming {} to {}", hidden_, target_);
  hidden_.clear();
  committed_.store(true, std::memory_order_release);
  if (::fsync(directory_.get()) != 0)
    refuse_errno(errno, "{} is replaced, but its directory could not be written to its device", target_);
}

}  // namespace towline::posix
