#include "storage/object/object.h"

#include "towline/storage.h"

namespace towline::object {

bool is_what_was_made(const Version& there, const Version& made) noexcept {
  const bool same = (!made.tag.empty() && there.tag == made.tag) ||
                    (!made.crc32c.empty() && there.crc32c == made.crc32c) ||
                    (!made.etag.empty() && there.etag == made.etag);
  return there.exists && same && there.bytes == made.bytes;
}

bool Object::replaces() const noexcept { return (flags_ & TOWLINE_STORAGE_REPLACE) != 0; }
bool Object::conditional() const noexcept { return (flags_ & TOWLINE_STORAGE_CONDITIONAL) != 0; }

Version Object::version() const {
  std::lock_guard lock(mutex_);
  return version_;
}

void Object::set_version(Version version) {
  std::lock_guard lock(mutex_);
  version_ = std::move(version);
}

void Object::add_conditions(std::vector<std::pair<std::string, std::string>>& headers) const {
  if (!conditional()) return;
  const Version last = version();
  if (last.exists) {
    headers.emplace_back("if-match", last.etag);
  } else {
    headers.emplace_back("if-none-match", "*");
  }
}

}  // namespace towline::object
