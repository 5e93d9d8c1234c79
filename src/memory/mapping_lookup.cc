#include "memory/mapping_lookup.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/ioctl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/error.h"

namespace towline {

namespace {

// linux/fs.h of 6.11 and later, under names of our own since older headers lack it.
struct ProcmapQuery {
  uint64_t size;
  uint64_t query_flags;
  uint64_t query_address;
  uint64_t begin;
  uint64_t end;
  uint64_t flags;
  uint64_t page_bytes;
  uint64_t offset;
  uint64_t inode;
  uint32_t device_major;
  uint32_t device_minor;
  uint32_t name_bytes;
  uint32_t build_id_bytes;
  uint64_t name_address;
  uint64_t build_id_address;
};
constexpr uint64_t kQueryReadable = 1;
constexpr uint64_t kQueryWritable = 2;
constexpr uint64_t kQueryExecutable = 4;
constexpr uint64_t kQueryShared = 8;
constexpr uint64_t kQueryCoveringOrNext = 16;
constexpr unsigned long kProcmapQuery = _IOWR('f', 17, ProcmapQuery);

constexpr size_t kReadBytes = 64 * 1024;
constexpr std::string_view kDeleted = " (deleted)";

std::string describe(const MemoryMapping& mapping) {
  return fmt::format("[{:#x}, {:#x}) {}", mapping.begin, mapping.end,
                     mapping.name.empty() ? "anonymous" : mapping.name);
}

}  // namespace

std::optional<MemoryMapping> parse_maps_line(const std::string& line) {
  MemoryMapping mapping;
  char access[5] = {};
  unsigned major_number = 0;
  unsigned minor_number = 0;
  int name_at = 0;
  const int fields = std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64 "%n",
                                 &mapping.begin, &mapping.end, access, &mapping.offset, &major_number,
                                 &minor_number, &mapping.inode, &name_at);
  if (fields != 7 || mapping.begin >= mapping.end) return std::nullopt;
  mapping.readable = access[0] == 'r';
  mapping.writable = access[1] == 'w';
  mapping.executable = access[2] == 'x';
  mapping.shared = access[3] == 's';
  mapping.device = makedev(major_number, minor_number);
  const size_t name = line.find_first_not_of(' ', static_cast<size_t>(name_at));
  if (name != std::string::npos) mapping.name = line.substr(name);
  return mapping;
}

MappingReader::MappingReader(uint64_t address, Source source)
    : maps_(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC)),
      address_(address),
      by_query_(source == Source::kBest) {
  if (!maps_.valid()) problem_ = "cannot open /proc/self/maps: " + errno_text(errno);
}

std::optional<MemoryMapping> MappingReader::next() {
  if (!maps_.valid()) return std::nullopt;
  std::optional<MemoryMapping> mapping;
  if (by_query_) mapping = query();
  if (!by_query_) mapping = read_line();
  if (mapping) address_ = mapping->end;
  return mapping;
}

std::optional<MemoryMapping> MappingReader::query() {
  char name[4096] = {};
  ProcmapQuery query = {};
  query.size = sizeof(query);
  query.query_flags = kQueryCoveringOrNext;
  query.query_address = address_;
  query.name_bytes = sizeof(name);
  query.name_address = reinterpret_cast<uint64_t>(name);
  if (::ioctl(maps_.get(), kProcmapQuery, &query) != 0) {
    if (errno != ENOENT)
      by_query_ = false;  // not known to this kernel, or something odd: the text tells as well
    return std::nullopt;
  }
  MemoryMapping mapping;
  mapping.begin = query.begin;
  mapping.end = query.end;
  mapping.offset = query.inode == 0 ? 0 : query.offset;
  mapping.inode = query.inode;
  mapping.device = makedev(query.device_major, query.device_minor);
  mapping.readable = (query.flags & kQueryReadable) != 0;
  mapping.writable = (query.flags & kQueryWritable) != 0;
  mapping.executable = (query.flags & kQueryExecutable) != 0;
  mapping.shared = (query.flags & kQueryShared) != 0;
  mapping.name = name;
  return mapping;
}

std::optional<MemoryMapping> MappingReader::read_line() {
  for (;;) {
    const size_t line_end = buffer_.find('\n', parsed_);
    if (line_end == std::string::npos) {
      buffer_.erase(0, parsed_);
      parsed_ = 0;
      const size_t held = buffer_.size();
      buffer_.resize(held + kReadBytes);
      const ssize_t got = ::read(maps_.get(), buffer_.data() + held, kReadBytes);
      buffer_.resize(held + (got > 0 ? static_cast<size_t>(got) : 0));
      if (got < 0) problem_ = "cannot read /proc/self/maps: " + errno_text(errno);
      if (got <= 0) return std::nullopt;
      continue;
    }
    auto mapping = parse_maps_line(buffer_.substr(parsed_, line_end - parsed_));
    parsed_ = line_end + 1;
    if (mapping && mapping->end > address_) return mapping;
  }
}

SharedMapping find_shared_mapping(const void* address, uint64_t bytes) {
  SharedMapping result;
  const auto begin = reinterpret_cast<uint64_t>(address);
  if (bytes == 0 || begin + bytes < begin) {
    result.reason = "no range of addresses";
    return result;
  }
  MappingReader reader(begin);
  for (uint64_t at = begin; at < begin + bytes;) {
    auto mapping = reader.next();
    if (!mapping || mapping->begin > at) {
      result.reason =
          reader.problem().empty() ? fmt::format("nothing is mapped at {:#x}", at) : reader.problem();
      return result;
    }
    if (!mapping->shared || mapping->inode == 0) {
      result.reason = fmt::format("{} is private memory", describe(*mapping));
      return result;
    }
    if (at == begin) {
      result.first = *mapping;
      result.offset = mapping->offset + (begin - mapping->begin);
    } else if (mapping->inode != result.first.inode || mapping->device != result.first.device ||
               mapping->offset != result.offset + (at - begin)) {
      result.reason = fmt::format("{} and {} are not one after the other in one file", describe(result.first),
                                  describe(*mapping));
      return result;
    }
    at = mapping->end;
  }
  result.found = true;
  return result;
}

namespace {

// The file's identity in maps: some file systems (btrfs, overlayfs) report another device by fstat than in
// maps.
bool maps_as(int fd, const MemoryMapping& wanted) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* probe = ::mmap(nullptr, page, PROT_NONE, MAP_SHARED, fd, 0);
  if (probe == MAP_FAILED) return false;
  MappingReader reader(reinterpret_cast<uint64_t>(probe));
  const auto mapping = reader.next();
  ::munmap(probe, page);
  return mapping && mapping->begin <= reinterpret_cast<uint64_t>(probe) && mapping->inode == wanted.inode &&
         mapping->device == wanted.device;
}

bool is_file_of(int fd, const MemoryMapping& mapping) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_ino != mapping.inode) return false;
  return status.st_dev == mapping.device || maps_as(fd, mapping);
}

struct Candidate {
  UniqueFd fd;
  bool writable = false;
};

// Ours, if it is the file of the mapping and better than what `best` holds.
void consider(UniqueFd fd, const MemoryMapping& mapping, Candidate& best) {
  if (!fd.valid()) return;
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || (flags & O_PATH) != 0 || (flags & O_ACCMODE) == O_WRONLY) return;
  const bool writable = (flags & O_ACCMODE) == O_RDWR;
  if (best.fd.valid() && !writable) return;
  if (is_file_of(fd.get(), mapping)) best = {std::move(fd), writable};
}

// Opens anew by name; never blocks on, nor touches, anything but a regular file.
void consider_path(const std::string& path, const MemoryMapping& mapping, Candidate& best) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_ino != mapping.inode)
    return;
  consider(UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK)), mapping, best);
  if (!best.fd.valid())
    consider(UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), mapping, best);
}

void consider_open_descriptors(const MemoryMapping& mapping, Candidate& best) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  if (!folder) return;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    int fd = -1;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), fd);
    if (parsed.ec != std::errc{} || parsed.ptr != name.data() + name.size()) continue;
    struct stat status = {};
    if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_ino != mapping.inode) continue;
    consider(UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 3)), mapping, best);
    if (best.fd.valid() && best.writable) return;
  }
}

}  // namespace

MappedFile open_mapped_file(const MemoryMapping& mapping) {
  MappedFile result;
  Candidate best;
  consider_open_descriptors(mapping, best);
  if (!best.writable && mapping.name.starts_with('/') && !mapping.name.ends_with(kDeleted))
    consider_path(mapping.name, mapping, best);
  if (!best.writable)
    consider_path(fmt::format("/proc/self/map_files/{:x}-{:x}", mapping.begin, mapping.end), mapping, best);
  if (!best.fd.valid()) {
    result.reason = fmt::format(
        "{} is shared, but no descriptor for its file is open here and it cannot be opened again: keep one "
        "open",
        describe(mapping));
    return result;
  }
  result.bytes = file_bytes(best.fd.get());
  result.fd = std::move(best.fd);
  result.writable = best.writable;
  return result;
}

}  // namespace towline
