#include "bench/storage_place.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "failure.h"
#include "storage_schemes.h"

namespace tool::bench {

Place::Place(const std::string& given) : text(given), folder(given) {
  const std::string_view name = scheme_text(given);
  if (name.empty()) return;
  const StorageScheme* const known = scheme_of(given);
  if (known == nullptr)
    throw Failure{fmt::format(
        "--storage {}: no backend of files or objects has the scheme '{}'. Give a folder (./{} if it is "
        "one), gds:/FOLDER, hf3fs:/FOLDER, nixl:/FOLDER, nixl:PLUGIN:/FOLDER, or s3://BUCKET/PREFIX, "
        "az:// or gs://",
        given, name, given)};
  scheme = name == "file" ? "" : name;
  objects = known->objects;
  folder = given.substr(name.size() + 1);
  if (objects != folder.starts_with("//"))
    throw Failure{fmt::format("--storage {}: {}", given,
                              objects ? fmt::format("objects are named {}://BUCKET/PREFIX", name)
                                      : fmt::format("folders are named {}:/FOLDER, with one slash", name))};
  const size_t last = folder.rfind(':');
  if (scheme != "nixl" || last == std::string::npos) return;
  library = folder.substr(0, last);
  folder = folder.substr(last + 1);
}

std::string Place::config() const {
  std::string config = plugins_for({text});
  if (!library.empty()) config += fmt::format("[nixl]\nlibrary = '{}'\n", library);
  return config;
}

Scratch::Scratch(const towline::Agent& agent, const Place& place, towline::StorageOptions options) {
  if (place.objects) {
    static std::atomic<uint64_t> made{0};
    const bool slash = place.text.ends_with('/');
    options.create = true;
    options.direct = false;
    region_.emplace(agent.register_storage(
        fmt::format("{}{}towline-bench-{}-{}", place.text, slash ? "" : "/", ::getpid(), made++), options));
    return;
  }
  std::string path = place.folder + "/towline-bench-XXXXXX";
  fd_ = ::mkostemp(path.data(), O_CLOEXEC);
  if (fd_ < 0) throw Failure{fmt::format("--storage {}: {}", place.text, std::strerror(errno))};
  try {
    region_.emplace(place.scheme.empty() ? agent.register_storage(fd_, options)
                                         : agent.register_storage(place.scheme + ":" + path, options));
  } catch (...) {
    (void)::unlink(path.c_str());
    ::close(fd_);
    throw;
  }
  (void)::unlink(path.c_str());
}

Scratch::~Scratch() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace tool::bench
