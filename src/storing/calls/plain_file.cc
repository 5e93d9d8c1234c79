#include "storing/calls/plain_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

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

namespace towline::calls {

namespace {

[[noreturn]] void refuse_file(Status status, const std::string& text) { throw plugin::Failure(status, text); }

[[noreturn]] void refuse_errno(int error, const std::string& what) {
  refuse_file(status_from_errno(error), what + ": " + errno_text(error));
}

std::string path_in(const char* scheme, const char* uri) {
  const std::string prefix = std::string(scheme) + ":";
  if (uri == nullptr)
    refuse_file(Status::kUnsupported, prefix + " a file is named by its path, not by a descriptor");
  std::string_view path = uri;
  if (!path.starts_with(prefix))
    refuse_file(Status::kUnsupported, fmt::format("'{}' is not a {} URI", uri, prefix));
  path.remove_prefix(prefix.size());
  if (path.starts_with("///")) path.remove_prefix(2);
  if (path.empty() || path.starts_with("//"))
    refuse_file(Status::kInvalidArgument, fmt::format("'{}' names no path of this host", uri));
  return std::string(path);
}

// A replacement goes where a symbolic link leads, so that the link stays.
std::string target_of(const std::string& path) {
  struct stat found = {};
  if (::lstat(path.c_str(), &found) != 0 || !S_ISLNK(found.st_mode)) return path;
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
  if (real == nullptr) refuse_errno(errno, path + " is a symbolic link that leads nowhere");
  return real.get();
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

int sync_folder(const std::string& path) {
  const UniqueFd folder{::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  return folder.valid() && ::fsync(folder.get()) == 0 ? 0 : errno;
}

towline_storage_attributes attributes_of(const struct stat& found, const std::string& path) {
  auto attributes = plugin::sized<towline_storage_attributes>();
  if (!S_ISREG(found.st_mode)) refuse_file(Status::kUnsupported, path + " is not a regular file");
  attributes.exists = 1;
  attributes.kind = TOWLINE_MEMORY_FILE;
  attributes.bytes = static_cast<uint64_t>(found.st_size);
  attributes.modified_ns = static_cast<uint64_t>(found.st_mtim.tv_sec) * 1'000'000'000 +
                           static_cast<uint64_t>(found.st_mtim.tv_nsec);
  return attributes;
}

// Reads leave no access time, where the file is this user's.
UniqueFd open_quietly(const std::string& name, int flags, uint32_t mode) {
  UniqueFd fd{::open(name.c_str(), flags | O_NOATIME, mode)};
  if (!fd.valid() && errno == EPERM) fd = UniqueFd{::open(name.c_str(), flags, mode)};
  return fd;
}

uint64_t next_id() noexcept {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

PlainFile::PlainFile(const char* scheme, const towline_storage_args& args)
    : id_(next_id()), path_(path_in(scheme, args.uri)), sync_(args.sync) {
  const bool replaces = (args.flags & TOWLINE_STORAGE_REPLACE) != 0;
  if ((args.flags & TOWLINE_STORAGE_CONDITIONAL) != 0)
    refuse_file(Status::kUnsupported, path_ + ": conditional is for objects");
  int flags = O_CLOEXEC | (args.access == TOWLINE_ACCESS_READ    ? O_RDONLY
                           : args.access == TOWLINE_ACCESS_WRITE ? O_WRONLY
                                                                 : O_RDWR);
  std::string name = path_;
  if (replaces) {
    path_ = target_of(path_);
    hidden_ = fmt::format("{}/.towline-{}", folder_of(path_), Id::random().to_hex());
    name = hidden_;
    flags |= O_CREAT | O_EXCL;
  } else if ((args.flags & TOWLINE_STORAGE_CREATE) != 0) {
    flags |= O_CREAT;
  }
  if ((args.flags & TOWLINE_STORAGE_TRUNCATE) != 0) flags |= O_TRUNC;
  const bool wants_direct = (args.flags & TOWLINE_STORAGE_DIRECT) != 0;
  fd_ = open_quietly(name, flags | (wants_direct ? O_DIRECT : 0), args.mode);
  direct_ = wants_direct && fd_.valid();
  if (!fd_.valid() && wants_direct && errno == EINVAL) {
    // The kernel makes a file before it finds that there is no direct I/O.
    if (replaces) (void)::unlink(name.c_str());
    fd_ = open_quietly(name, flags, args.mode);
  }
  if (!fd_.valid()) {
    const int error = errno;
    hidden_.clear();
    refuse_errno(error, path_ + " can't be opened");
  }
  struct stat found = {};
  if (::fstat(fd_.get(), &found) != 0) refuse_errno(errno, path_);
  attributes_ = attributes_of(found, path_);
}

PlainFile::~PlainFile() {
  if (!hidden_.empty()) (void)::unlink(hidden_.c_str());
}

towline_storage_attributes PlainFile::query(const char* scheme, const char* uri) {
  const std::string path = path_in(scheme, uri);
  struct stat found = {};
  if (::stat(path.c_str(), &found) == 0) return attributes_of(found, path);
  if (errno != ENOENT && errno != ENOTDIR) refuse_errno(errno, path);
  return plugin::sized<towline_storage_attributes>();
}

void PlainFile::commit() {
  if (committed()) refuse_file(Status::kStale, path_ + " has been committed: register it anew");
  if (::fsync(fd_.get()) != 0) refuse_errno(errno, path_ + " can't be made durable");
  if (!hidden_.empty()) {
    if (::rename(hidden_.c_str(), path_.c_str()) != 0) refuse_errno(errno, path_ + " can't be replaced");
    hidden_.clear();
    committed_.store(true, std::memory_order_release);
  }
  if (const int error = sync_folder(path_); error != 0) refuse_errno(error, path_ + ": its folder");
}

int PlainFile::sync() const noexcept {
  return (sync_ == TOWLINE_SYNC_FULL ? ::fsync(fd_.get()) : ::fdatasync(fd_.get())) == 0 ? 0 : errno;
}

}  // namespace towline::calls
