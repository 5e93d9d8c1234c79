#include "bench/storage_place.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "failure.h"

namespace tool::bench {
namespace {

struct Scheme {
  std::string_view name;
  const char* plugin;  // empty: none is needed
  bool objects;
};
constexpr Scheme kSchemes[] = {
    {"file", "", false},    {"gds", "gds", false},  {"hf3fs", "hf3fs", false}, {"nixl", "nixl", false},
    {"s3", "object", true}, {"az", "object", true}, {"gs", "object", true},
};

}  // namespace

Place::Place(const std::string& given) : text(given), folder(given) {
  const size_t colon = given.find(':');
  if (colon == std::string::npos || given.find('/') < colon) return;
  const std::string_view name = std::string_view{given}.substr(0, colon);
  const auto* known = std::ranges::find(kSchemes, name, &Scheme::name);
  if (known == std::end(kSchemes))
    throw Failure{fmt::format(
        "--storage {}: no backend of files or objects has the scheme '{}'. Give a folder (./{} if it is "
        "one), gds:/FOLDER, hf3fs:/FOLDER, nixl:/FOLDER, nixl:PLUGIN:/FOLDER, or s3://BUCKET/PREFIX, "
        "az:// or gs://",
        given, name, given)};
  scheme = name == "file" ? "" : name;
  plugin = known->plugin;
  objects = known->objects;
  folder = given.substr(colon + 1);
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
  std::string config;
  if (!plugin.empty()) config += fmt::format("plugins = \"{}\"\n", plugin);
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
