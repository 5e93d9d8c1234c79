// Source-compatible with NIXL's header of this name: files that descriptors name by path.
//
// A descriptor's metadata is "<modes>:<path>", where modes are ro or rw, then any of direct, sync, noatime and
// create, between commas. Any other metadata means the open descriptor in devId. Each file by path needs a
// devId of its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "../backend/backend_engine.h"

namespace nixl {

struct PathSpec {
  std::string path;
  int flags;
  mode_t mode;  // of a file that is created
};

// Empty if the text is not of that form.
[[nodiscard]] TOWLINE_NIXL_API std::optional<PathSpec> parsePathMeta(const std::string& text);

// A descriptor's file: opened and owned if it is named by path, else the given descriptor.
class TOWLINE_NIXL_API FileFd {
 public:
  FileFd() = default;
  // Throws std::system_error.
  FileFd(int fallback_fd, const std::string& metaInfo);
  FileFd(const FileFd&) = delete;
  FileFd& operator=(const FileFd&) = delete;
  FileFd(FileFd&& other) noexcept;
  FileFd& operator=(FileFd&& other) noexcept;
  ~FileFd();

  int fd() const noexcept { return fd_; }
  const std::string& path() const noexcept { return path_; }

 private:
  int fd_ = -1;
  bool owned_ = false;
  std::string path_;
};

// The devIds in use by files by path.
class PathModeDevIdRegistry {
 public:
  // Gives the devId back at its end unless it was committed.
  class Reservation {
   public:
    Reservation(Reservation&& other) noexcept
        : registry_(std::exchange(other.registry_, nullptr)), devId_(other.devId_), ok_(other.ok_) {}
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;
    ~Reservation() {
      if (registry_ != nullptr) registry_->release(devId_);
    }
    // False: another file has this devId.
    bool ok() const noexcept { return ok_; }
    void commit() noexcept { registry_ = nullptr; }

   private:
    friend class PathModeDevIdRegistry;
    Reservation(PathModeDevIdRegistry* registry, uint64_t device, bool is_ok)
        : registry_(registry), devId_(device), ok_(is_ok) {}

    PathModeDevIdRegistry* registry_;  // null: nothing to give back
    uint64_t devId_;
    bool ok_;
  };

  [[nodiscard]] Reservation reserve(uint64_t devId, const std::string& metaInfo) {
    if (!parsePathMeta(metaInfo)) return {nullptr, devId, true};
    const bool added = taken_.insert(devId).second;
    return {added ? this : nullptr, devId, added};
  }
  void release(uint64_t devId) { taken_.erase(devId); }

 private:
  std::unordered_set<uint64_t> taken_;
};

}  // namespace nixl

class nixlFilePathMD : public nixlBackendMD {
 public:
  nixl::FileFd file_fd;
  uint64_t devId = 0;

  nixlFilePathMD() : nixlBackendMD(true) {}
  nixlFilePathMD(uint64_t device, const std::string& metaInfo)
      : nixlBackendMD(true), file_fd(static_cast<int>(device), metaInfo), devId(device) {}
};
