// Other processes' counters, found by the links in /proc.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "telemetry/snapshot.h"

namespace towline {
namespace {

using FileKey = std::pair<uint64_t, uint64_t>;  // device, inode

std::optional<uint32_t> parse_pid(std::string_view text) noexcept {
  uint32_t pid = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return pid;
}

template <class Visit>
void for_each_entry(const std::string& path, Visit&& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(path.c_str()), closedir);
  if (!directory) return;
  while (const dirent* entry = readdir(directory.get())) visit(std::string(entry->d_name));
}

bool links_to_counters(const std::string& link) {
  char target[512];
  const ssize_t bytes = readlink(link.c_str(), target, sizeof target);
  if (bytes <= 0) return false;
  const std::string_view text(target, static_cast<std::size_t>(bytes));
  constexpr std::string_view kMemfd = "/memfd:";
  return text.starts_with(kMemfd) && text.substr(kMemfd.size()).starts_with(counters::kFilePrefix);
}

void read_one(const std::string& link, uint32_t pid, std::map<FileKey, Snapshot>& found) {
  const UniqueFd fd(open(link.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd || fstat(fd.get(), &info) != 0) return;
  const FileKey key{info.st_dev, info.st_ino};
  // The same file twice is a forked child that inherited the descriptor: the lower pid is nearly always the
  // parent, and the one that the file itself names is for sure.
  const auto seen = found.find(key);
  try {
    Snapshot snapshot = read_snapshot(fd.get());
    const bool named = snapshot.pid == pid;
    if (seen != found.end() && !named) return;
    snapshot.pid = pid;
    found[key] = std::move(snapshot);
  } catch (const Error& error) {
    TOWLINE_LOG(kDebug, "leaving out {}: {}", link, error.what());
  }
}

}  // namespace

std::vector<Snapshot> find_processes(const std::string& proc_root) {
  std::vector<uint32_t> pids;
  for_each_entry(proc_root, [&](const std::string& name) {
    if (const auto pid = parse_pid(name)) pids.push_back(*pid);
  });
  std::sort(pids.begin(), pids.end());

  std::map<FileKey, Snapshot> found;
  for (const uint32_t pid : pids) {
    const std::string folder = fmt::format("{}/{}/fd", proc_root, pid);
    for_each_entry(folder, [&](const std::string& name) {
      const std::string link = folder + "/" + name;
      if (links_to_counters(link)) read_one(link, pid, found);
    });
  }

  std::vector<Snapshot> snapshots;
  for (auto& [key, snapshot] : found) snapshots.push_back(std::move(snapshot));
  std::sort(snapshots.begin(), snapshots.end(), [](const Snapshot& a, const Snapshot& b) {
    return std::tie(a.pid, a.agent, a.started_realtime_ns) < std::tie(b.pid, b.agent, b.started_realtime_ns);
  });
  return snapshots;
}

}  // namespace towline
