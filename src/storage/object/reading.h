// The objects that one post reads, over all its jobs and clients: chunks that are staged, parts on
// several workers. Each object is read in one version; if the post reads the whole of one, the bytes are compared
// with that object's checksum when the last stretch has come.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "storage/object/object.h"
#include "towline/plugin/v1.h"
#include "towline/status.h"

namespace towline::object {

// Any thread.
class Reading {
 public:
  // `checked`: all of this one is read, as far as is known, and its checksum may be; null: nothing is
  // compared.
  explicit Reading(const Object* checked) : checked_(checked) {}
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  // The version that requests insist on after the first answer; empty: none has come, or it can't be insisted on.
  [[nodiscard]] std::string wanted_version(const Object& object) const;
  // False: this is another version than the one that is being read, which is the first answer's. `generation`: of
  // servers that number their versions; else empty.
  [[nodiscard]] bool is_version(const Object& object, std::string_view etag,
                                std::string_view generation = {});
  [[nodiscard]] bool checks() const noexcept { return checked_ != nullptr; }
  // The first answer tells about the object that is checked and was not looked at before; later ones change nothing.
  void learn(Version version);
  void read_stretch(const Object& object, uint64_t begin, uint64_t bytes, uint32_t crc);
  // Not kOk: all of the object has been read, and it is not what was written.
  [[nodiscard]] Status verify() const;

 private:
  struct Pinned {
    const Object* object;
    std::string etag;
    std::string generation;
  };
  struct Stretch {
    uint64_t bytes;
    uint32_t crc;
  };

  const Object* const checked_;
  mutable std::mutex mutex_;  // of all below
  std::vector<Pinned> pinned_;
  std::map<uint64_t, Stretch> stretches_;  // by where they begin; neighbours are joined
  bool overlaps_ = false;                  // something was read twice: its checksum says nothing of the whole
  Version learned_;
};

// The readings of posts that are submitted in several jobs. Any thread.
class Readings {
 public:
  // The state of a post, made by the first request for it. A holder keeps it as long as more may be
  // submitted.
  [[nodiscard]] std::shared_ptr<Reading> join(const towline_post& post, const Object* checked);

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<Reading>> by_post_;
};

}  // namespace towline::object
