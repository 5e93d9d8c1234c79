#include "storage/object/reading.h"

#include <algorithm>
#include <iterator>

#include "storage/object/checksum.h"

namespace towline::object {

std::string Reading::wanted_version(const Object& object) const {
  std::lock_guard lock(mutex_);
  for (const Pinned& known : pinned_) {
    // A weak one matches nothing.
    if (known.object == &object && !known.etag.starts_with("W/")) return known.etag;
  }
  return {};
}

bool Reading::is_version(const Object& object, std::string_view etag, std::string_view generation) {
  std::lock_guard lock(mutex_);
  for (const Pinned& known : pinned_) {
    if (known.object == &object) return known.etag == etag && known.generation == generation;
  }
  pinned_.push_back({&object, std::string{etag}, std::string{generation}});
  return true;
}

void Reading::learn(Version version) {
  std::lock_guard lock(mutex_);
  if (!learned_.looked) learned_ = std::move(version);
}

void Reading::read_stretch(const Object& object, uint64_t begin, uint64_t bytes, uint32_t crc) {
  if (&object != checked_ || bytes == 0) return;
  std::lock_guard lock(mutex_);
  const auto behind = stretches_.lower_bound(begin);
  const auto before = behind == stretches_.begin() ? stretches_.end() : std::prev(behind);
  const bool over_before = before != stretches_.end() && before->first + before->second.bytes > begin;
  const bool over_behind = behind != stretches_.end() && begin + bytes > behind->first;
  overlaps_ = overlaps_ || over_before || over_behind;
  if (overlaps_) return;
  auto joined = stretches_.end();
  if (before != stretches_.end() && before->first + before->second.bytes == begin) {
    before->second = {before->second.bytes + bytes, crc32c_join(before->second.crc, crc, bytes)};
    joined = before;
  } else {
    joined = stretches_.emplace_hint(behind, begin, Stretch{bytes, crc});
  }
  if (behind == stretches_.end() || joined->first + joined->second.bytes != behind->first) return;
  joined->second = {joined->second.bytes + behind->second.bytes,
                    crc32c_join(joined->second.crc, behind->second.crc, behind->second.bytes)};
  stretches_.erase(behind);
}

Status Reading::verify() const {
  if (checked_ == nullptr) return Status::kOk;
  const Version looked = checked_->version();
  std::lock_guard lock(mutex_);
  const Version& version = looked.looked ? looked : learned_;
  const auto wanted = crc32c_value(version.crc32c);
  if (!wanted || overlaps_ || stretches_.size() != 1) return Status::kOk;
  // The checksum is known for one version only.
  if (pinned_.size() != 1 || pinned_[0].etag != version.etag) return Status::kOk;
  const auto& [begin, all] = *stretches_.begin();
  return begin == 0 && all.bytes == version.bytes && all.crc != *wanted ? Status::kCorrupt : Status::kOk;
}

std::shared_ptr<Reading> Readings::join(const towline_post& post, const Object* checked) {
  std::lock_guard lock(mutex_);
  std::erase_if(by_post_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Reading>& known = by_post_[post.number];
  std::shared_ptr<Reading> reading = known.lock();
  if (reading == nullptr) {
    reading = std::make_shared<Reading>(checked);
    known = reading;
  }
  return reading;
}

}  // namespace towline::object
