// Where towline bench --storage makes its files or objects.
#pragma once

#include <optional>
#include <string>
#include <towline/storage.hpp>
#include <towline/towline.hpp>

namespace tool::bench {

// A folder ("/data", "file:/data"), a folder of a backend of its own ("gds:/data"), also by a plugin of NIXL's that is named
// ("nixl:POSIX:/data"), or a prefix of objects ("s3://bucket/prefix").
struct Place {
  // Throws Failure that names what can be given.
  explicit Place(const std::string& given);

  // The plugin that serves it, as configuration.
  [[nodiscard]] std::string config() const;

  std::string text;     // as given
  std::string scheme;   // empty: a plain folder
  std::string library;  // nixl: the plugin of NIXL's
  std::string folder;   // not of objects
  bool objects = false;
};

// A file that has no name any more when it is open, or an object, which stays.
class Scratch {
 public:
  Scratch(const towline::Agent& agent, const Place& place, towline::StorageOptions options);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] int fd() const { return fd_; }  // -1: an object
  [[nodiscard]] const towline::Region& region() const { return *region_; }

 private:
  int fd_ = -1;
  std::optional<towline::Region> region_;
};

}  // namespace tool::bench
