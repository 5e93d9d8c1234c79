#include "base/os/host_identity.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/os/unique_fd.h"

namespace towline {
namespace {

uint64_t inode_of(const char* path) noexcept {
  struct stat info {};
  return stat(path, &info) == 0 ? static_cast<uint64_t>(info.st_ino) : 0;
}

Id read_boot_id() {
  std::string text = read_text_file("/proc/sys/kernel/random/boot_id", 128).value_or("");
  std::erase_if(text, [](char c) { return c == '-' || c == '\n'; });
  return Id::from_hex(text).value_or(Id{});
}

// Field 22 of /proc/<pid>/stat. Field 2, the program's name in parentheses, may itself contain spaces and
// parentheses: count from the last one.
uint64_t start_time_from(const std::string& path) {
  const std::optional<std::string> text = read_text_file(path, 8192);
  if (!text) return 0;
  std::size_t at = text->rfind(')');
  if (at == std::string::npos) return 0;
  for (int field = 2; field < 22; ++field) {
    at = text->find(' ', at + 1);
    if (at == std::string::npos) return 0;
  }
  uint64_t value = 0;
  const char* begin = text->data() + at + 1;
  return std::from_chars(begin, text->data() + text->size(), value).ec == std::errc() ? value : 0;
}

}  // namespace

HostIdentity read_host_identity() {
  HostIdentity identity;
  identity.boot_id = read_boot_id();
  identity.pid = static_cast<uint32_t>(getpid());
  identity.pid_namespace = inode_of("/proc/self/ns/pid");
  identity.network_namespace = inode_of("/proc/self/ns/net");
  identity.process_start_time = start_time_from("/proc/self/stat");
  return identity;
}

bool process_is_gone(const HostIdentity& process) {
  if (process.pid == 0 || process.pid > INT32_MAX || !process.same_pid_namespace(read_host_identity()))
    return false;
  if (kill(static_cast<pid_t>(process.pid), 0) != 0 && errno == ESRCH) return true;
  const uint64_t start_time = process_start_time(process.pid);
  return process.process_start_time != 0 && start_time != 0 && start_time != process.process_start_time;
}

uint64_t process_start_time(uint32_t pid) { return start_time_from(fmt::format("/proc/{}/stat", pid)); }

void put(WireWriter& out, const HostIdentity& host) {
  out.u64(host.boot_id.hi);
  out.u64(host.boot_id.lo);
  out.u32(host.pid);
  out.u64(host.pid_namespace);
  out.u64(host.network_namespace);
  out.u64(host.process_start_time);
}

HostIdentity decode_host_identity(WireReader& in) {
  HostIdentity host;
  host.boot_id.hi = in.u64();
  host.boot_id.lo = in.u64();
  host.pid = in.u32();
  host.pid_namespace = in.u64();
  host.network_namespace = in.u64();
  host.process_start_time = in.u64();
  return host;
}

}  // namespace towline
