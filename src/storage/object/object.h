// An object that an agent registered: its known state, and its replacement in progress.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "storage/object/client.h"
#include "storage/object/names.h"
#include "towline/plugin/v1.h"

namespace towline::object {

// The state of an object at the server.
struct Version {
  bool looked = false;  // the server has answered; else these are the application's values
  bool exists = false;
  std::string etag{};
  uint64_t bytes = 0;
  uint64_t modified_ns = 0;
  std::string crc32c{};  // of all of it, as S3 writes it; empty: not known
  std::string sha256{};
  std::string tag{};  // the name of the write that made it, where the server keeps one
};
// Is what the server has what was made, as far as that is known: by tag, checksum or ETag, and by length?
[[nodiscard]] bool is_what_was_made(const Version& there, const Version& made) noexcept;

struct UploadedPart {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  std::string etag{};
  std::string crc32c{};  // of the part; empty: none was sent
  std::string sha256{};
  std::string md5{};
  std::string crc64{};
  uint32_t crc = 0;
};
// A part to be: of new bytes, or copied from what is there.
struct Piece {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool copied = false;
};

using Parts = std::map<uint32_t, UploadedPart>;  // by number

class Object {
 public:
  Object(uint64_t id, ObjectName object_name, const towline_storage_args& args, Version version)
      : id_(id),
        name_(std::move(object_name)),
        flags_(args.flags),
        bytes_(args.bytes),
        version_(std::move(version)) {
    if (bytes_ == 0) bytes_ = version_.bytes;
  }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  [[nodiscard]] uint64_t id() const noexcept { return id_; }
  [[nodiscard]] const ObjectName& name() const noexcept { return name_; }
  [[nodiscard]] uint64_t bytes() const noexcept { return bytes_; }  // of the region
  [[nodiscard]] bool replaces() const noexcept;
  [[nodiscard]] bool conditional() const noexcept;

  // As it was seen or written last. Any thread.
  [[nodiscard]] Version version() const;
  void set_version(Version version);
  // The headers that let a WRITE through only while the server has that version; none without the flag.
  void add_conditions(std::vector<std::pair<std::string, std::string>>& headers) const;

  // The object turned out to be longer than the region: it is read by ranges. Any thread.
  std::atomic<bool> is_longer{false};

  // ---- the replacement. Any thread. Nobody holds the mutex while the server is asked: what is being committed belongs to
  // the thread that does so.
  enum class Stage { kOpen, kCommitting, kCommitted };
  std::mutex replacement_mutex;  // of all below
  Stage stage = Stage::kOpen;
  std::string upload_id;  // empty: nothing was written yet
  Parts parts;

 private:
  const uint64_t id_;
  const ObjectName name_;
  const uint32_t flags_;
  uint64_t bytes_;
  mutable std::mutex mutex_;
  Version version_;
};

}  // namespace towline::object
