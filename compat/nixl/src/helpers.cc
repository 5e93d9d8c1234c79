// The functions behind the helper headers for plugins: files by path, the host's devices, settings.
#include <common/configuration.h>
#include <common/hw_info.h>
#include <fcntl.h>
#include <file/file_path_mode.h>
#include <file/file_utils.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>

#include "settings.h"

namespace nixl {

// ---- Files

nixl_query_resp_t queryFileInfo(std::string_view filename) {
  struct stat found = {};
  if (filename.empty() || stat(std::string{filename}.c_str(), &found) != 0) return std::nullopt;
  return nixl_b_params_t{{"size", std::to_string(found.st_size)},
                         {"mode", std::to_string(found.st_mode)},
                         {"mtime", std::to_string(found.st_mtime)}};
}

nixl_status_t queryFileInfoList(const std::vector<std::string>& filenames,
                                std::vector<nixl_query_resp_t>& resp) {
  resp.clear();
  resp.reserve(filenames.size());
  for (const std::string& filename : filenames) resp.push_back(queryFileInfo(filename));
  return NIXL_SUCCESS;
}

std::optional<PathSpec> parsePathMeta(const std::string& text) {
  constexpr mode_t kNewFile = 0644;
  const size_t colon = text.find(':');
  if (colon == std::string::npos || colon + 1 == text.size()) return std::nullopt;
  PathSpec spec{text.substr(colon + 1), -1, 0};
  std::istringstream modes(text.substr(0, colon));
  for (std::string mode; std::getline(modes, mode, ',');) {
    const bool first = spec.flags == -1;
    if (first && mode == "ro") {
      spec.flags = O_RDONLY;
    } else if (first && mode == "rw") {
      spec.flags = O_RDWR;
    } else if (!first && mode == "direct") {
      spec.flags |= O_DIRECT;
    } else if (!first && mode == "sync") {
      spec.flags |= O_SYNC;
    } else if (!first && mode == "noatime") {
      spec.flags |= O_NOATIME;
    } else if (!first && mode == "create") {
      spec.flags |= O_CREAT;
      spec.mode = kNewFile;
    } else {
      return std::nullopt;
    }
  }
  if (spec.flags == -1) return std::nullopt;
  return spec;
}

FileFd::FileFd(int fallback_fd, const std::string& metaInfo) : fd_(fallback_fd) {
  const std::optional<PathSpec> spec = parsePathMeta(metaInfo);
  if (!spec) return;
  fd_ = open(spec->path.c_str(), spec->flags | O_CLOEXEC, spec->mode);
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "the file " + spec->path);
  owned_ = true;
  path_ = spec->path;
}

FileFd::FileFd(FileFd&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      owned_(std::exchange(other.owned_, false)),
      path_(std::move(other.path_)) {}

FileFd& FileFd::operator=(FileFd&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(owned_, other.owned_);
  std::swap(path_, other.path_);
  return *this;
}

FileFd::~FileFd() {
  if (owned_) close(fd_);
}

// ---- Devices

namespace {

unsigned long hex_in(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string text;
  stream >> text;
  return std::strtoul(text.c_str(), nullptr, 16);
}

}  // namespace

hwInfo::hwInfo() {
  constexpr unsigned long kNvidia = 0x10de;
  constexpr unsigned long kAmd = 0x1002;
  constexpr unsigned long kMellanox = 0x15b3;
  constexpr unsigned long kAmazon = 0x1d0f;
  constexpr unsigned long kDisplay = 0x03;
  constexpr unsigned long kInfiniBand = 0x0207;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/bus/pci/devices", error)) {
    const unsigned long vendor = hex_in(entry.path() / "vendor");
    const unsigned long kind = hex_in(entry.path() / "class") >> 8;
    const unsigned long device = hex_in(entry.path() / "device");
    if (kind >> 8 == kDisplay && vendor == kNvidia) ++numNvidiaGpus;
    // Its accelerators without a display say that they process.
    if ((kind >> 8 == kDisplay || kind >> 8 == 0x12) && vendor == kAmd) ++numAmdGpus;
    if (kind == kInfiniBand && vendor == kMellanox) ++numIbDevices;
    if (vendor == kAmazon && device >> 4 == 0xefa) ++numEfaDevices;
  }
}

const hwInfo& hwInfo::instance() {
  static const hwInfo found;
  return found;
}

}  // namespace nixl

std::optional<std::string> towline::nixl::configured(const std::string& name) { return find_setting(name); }
