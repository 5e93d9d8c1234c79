#include "secure/key_files.h"

#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/error.h"

namespace towline::secure {
namespace {

constexpr int64_t kFreshNs = 2 * kSecondNs;  // the coarsest times of file systems

std::array<const std::string*, 4> paths_of(const Keys::Files& files) noexcept {
  return {&files.key, &files.certificate, &files.private_key, &files.authority};
}

}  // namespace

FilesLook FilesLook::at(const Keys::Files& files) noexcept {
  FilesLook look;
  auto file = look.files_.begin();
  for (const std::string* path : paths_of(files)) {
    File& seen = *file++;
    struct stat status {};
    if (path->empty()) continue;
    if (::stat(path->c_str(), &status) != 0) {
      seen.error = errno;
      continue;
    }
    seen = {0,
            status.st_mode & S_IFMT,
            status.st_dev,
            status.st_ino,
            status.st_size,
            int64_t{status.st_ctim.tv_sec} * static_cast<int64_t>(kSecondNs) + status.st_ctim.tv_nsec};
  }
  return look;
}

bool FilesLook::plain() const noexcept {
  return std::ranges::all_of(files_, [](const File& file) { return file.type == 0 || S_ISREG(file.type); });
}

void FilesLook::check_plain(const Keys::Files& files) const {
  const auto paths = paths_of(files);
  for (std::size_t i = 0; i < files_.size(); ++i)
    if (files_[i].type != 0 && !S_ISREG(files_[i].type))
      fail(Status::kInvalidArgument, "{} = \"{}\" is no plain file any more", Keys::kSettings[i], *paths[i]);
}

bool FilesLook::fresh(int64_t now_ns) const noexcept {
  return std::ranges::any_of(files_, [&](const File& file) {
    return file.type != 0 && file.changed_ns <= now_ns + kFreshNs && file.changed_ns > now_ns - kFreshNs;
  });
}

bool waits_for_others(uint64_t file_system_type) noexcept {
  constexpr uint64_t kTypes[] = {
      0x6969,      // NFS
      0xff534d42,  // CIFS
      0xfe534d42,  // SMB2
      0x517b,      // SMB
      0x65735546,  // FUSE
      0x01021997,  // 9P
      0x0bd00bd0,  // Lustre
      0x47504653,  // GPFS
      0x00c36400,  // Ceph
      0x19830326,  // BeeGFS
      0x5346414f,  // OpenAFS
      0x6b414653,  // kAFS
      0x73757245,  // Coda
      0x01161970,  // GFS2
      0x7461636f,  // OCFS2
      0xaad7aaea,  // PanFS
  };
  return std::ranges::find(kTypes, file_system_type & 0xffffffff) != std::end(kTypes);
}

bool lie_where_looking_may_wait(const Keys::Files& files) noexcept {
  return std::ranges::any_of(paths_of(files), [](const std::string* path) {
    struct statfs found {};
    return !path->empty() && ::statfs(path->c_str(), &found) == 0 &&
           waits_for_others(static_cast<uint64_t>(found.f_type));
  });
}

}  // namespace towline::secure
