#include "storage/object/object.h"

#include "towline/storage.h"

namespace towline::object {

Version version_of(const Headers& headers) {
  Version version;
  version.looked = true;
  version.exists = true;
  version.etag = header(headers, "etag");
  version.bytes = decode_number(header(headers, "content-length")).value_or(0);
  const auto modified = decode_time(header(headers, "last-modified"));
  if (modified && *modified > 0) version.modified_ns = static_cast<uint64_t>(*modified) * kSecondNs;
  if (header(headers, "x-amz-checksum-type") != "COMPOSITE") {
    version.crc32c = header(headers, "x-amz-checksum-crc32c");
    version.sha256 = header(headers, "x-amz-checksum-sha256");
    if (version.sha256.find('-') != std::string::npos) version.sha256.clear();
    if (version.crc32c.find('-') != std::string::npos) version.crc32c.clear();
  }
  return version;
}

bool is_what_was_made(const Version& there, const Version& made) noexcept {
  const bool same = (!made.crc32c.empty() && there.crc32c == made.crc32c) ||
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
