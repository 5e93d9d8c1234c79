#include "fabric/ofi/shm_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string_view>

#include "base/error.h"

namespace towline::fabric {

namespace {

constexpr std::string_view kProviderPrefix = "fi_shm://";
constexpr std::string_view kPrefix = "towline-fi-";

bool older(const struct stat& file, uint64_t age_ns) noexcept {
  using namespace std::chrono;
  const auto changed = seconds(file.st_ctim.tv_sec) + nanoseconds(file.st_ctim.tv_nsec);
  return changed + nanoseconds(age_ns) <= system_clock::now().time_since_epoch();
}

}  // namespace

std::string unique_shm_address() {
  return fmt::format("{}{}{}-{:x}", kProviderPrefix, kPrefix, getpid(), monotonic_now_ns());
}

UniqueFd lock_shm_file(const std::string& endpoint_name, const char* folder) {
  std::string_view name = endpoint_name.c_str();  // providers count the zero at its end
  if (name.starts_with(kProviderPrefix)) name.remove_prefix(kProviderPrefix.size());
  if (!name.starts_with(kPrefix)) return {};
  const std::string path = fmt::format("{}/{}", folder, name);
  UniqueFd file{open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW)};
  if (!file) return {};
  struct stat found = {};
  if (flock(file.get(), LOCK_SH | LOCK_NB) != 0 || fstat(file.get(), &found) != 0 || found.st_nlink == 0)
    fail(Status::kAgain, "{} was taken for one of a process that is gone; try again", path);
  return file;
}

uint64_t remove_abandoned_shm_files(uint64_t age_ns, const char* folder) noexcept {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries{opendir(folder), closedir};
  if (entries == nullptr) return 0;
  const int at = dirfd(entries.get());
  uint64_t removed = 0;
  while (const dirent* const entry =
             readdir(entries.get())) {  // NOLINT(concurrency-mt-unsafe): a stream of its own
    if (!std::string_view{entry->d_name}.starts_with(kPrefix)) continue;
    const UniqueFd file{openat(at, entry->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
    struct stat found = {};
    if (!file || fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode) || found.st_uid != geteuid())
      continue;
    if (!older(found, age_ns) || flock(file.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (unlinkat(at, entry->d_name, 0) == 0) ++removed;
  }
  return removed;
}

}  // namespace towline::fabric
