#include "rendezvous/store_requests.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

namespace towline::rendezvous {
namespace {

constexpr uint64_t kEntryBytes = 128;  // overhead of a key and a value

uint64_t cost_of(const std::string& key) { return key.size() + kEntryBytes; }

}  // namespace

// ---- Requests

bool StoreRequestReader::begin(uint8_t query) {
  request_ = {};
  request_.query = StoreQuery{query};
  items_.clear();
  keys_bytes_ = 0;
  switch (request_.query) {
    case StoreQuery::kValidate:
    case StoreQuery::kPing:
      items_ = {Item::kNumber32};
      return true;
    case StoreQuery::kSet:
      items_ = {Item::kValue, Item::kKey};
      return true;
    case StoreQuery::kGet:
    case StoreQuery::kDelete:
      items_ = {Item::kKey};
      return true;
    case StoreQuery::kAdd:
      items_ = {Item::kNumber64, Item::kKey};
      return true;
    case StoreQuery::kCheck:
    case StoreQuery::kWait:
      items_ = {Item::kKeyCount};
      return true;
    case StoreQuery::kKeys:
    case StoreQuery::kCancelWait:
      return true;
  }
  return false;
}

// True when the number is complete.
bool StoreRequestReader::number(size_t size, std::span<const uint8_t>& bytes, uint64_t& value) {
  const size_t count = std::min(size - digits_there_, bytes.size());
  std::copy_n(bytes.begin(), count, digits_ + digits_there_);
  bytes = bytes.subspan(count);
  digits_there_ += count;
  if (digits_there_ < size) return false;
  value = 0;
  std::memcpy(&value, digits_, size);
  digits_there_ = 0;
  return true;
}

// A size, then that many bytes.
StoreRequestReader::Result StoreRequestReader::field(Item item, std::span<const uint8_t>& bytes) {
  if (!sized_) {
    if (!number(sizeof(uint64_t), bytes, field_left_)) return Result::kMore;
    sized_ = true;
    if (item == Item::kValue) {
      if (field_left_ > kMostValueBytes) return Result::kBroken;
    } else {
      if (field_left_ > kMostKeyBytes || keys_bytes_ + field_left_ > kMostKeysBytes) return Result::kBroken;
      keys_bytes_ += field_left_ + sizeof(std::string);
      request_.keys.emplace_back();
    }
  }
  // Grows with the bytes that arrive, whatever size was announced.
  const size_t count = std::min<uint64_t>(field_left_, bytes.size());
  if (item == Item::kValue)
    request_.value.insert(request_.value.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count));
  else
    request_.keys.back().append(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count));
  bytes = bytes.subspan(count);
  field_left_ -= count;
  if (field_left_ != 0) return Result::kMore;
  sized_ = false;
  return Result::kWhole;
}

StoreRequestReader::Result StoreRequestReader::take(std::span<const uint8_t>& bytes) {
  if (!under_way_) {
    if (bytes.empty()) return Result::kMore;
    if (!begin(bytes.front())) return Result::kBroken;
    under_way_ = true;
    bytes = bytes.subspan(1);
  }
  while (!items_.empty()) {
    const Item item = items_.back();
    uint64_t value = 0;
    switch (item) {
      case Item::kNumber32:
      case Item::kNumber64:
        if (!number(item == Item::kNumber32 ? 4 : 8, bytes, value)) return Result::kMore;
        request_.number = static_cast<int64_t>(value);
        items_.pop_back();
        break;
      case Item::kKeyCount:
        if (!number(8, bytes, keys_left_)) return Result::kMore;
        if (keys_left_ > kMostKeys) return Result::kBroken;
        items_.pop_back();
        if (keys_left_ != 0) items_.push_back(Item::kKey);
        break;
      case Item::kKey:
      case Item::kValue:
        if (const Result result = field(item, bytes); result != Result::kWhole) return result;
        if (item == Item::kValue || keys_left_ <= 1) items_.pop_back();
        if (item == Item::kKey && keys_left_ != 0) --keys_left_;
        break;
    }
  }
  under_way_ = false;
  return Result::kWhole;
}

// ---- Values

StoreValue StoreValues::keep(Bytes value) {
  // Counted until the last reply has released it.
  const auto release = [count = bytes_, size = value.size()](const Bytes* held) {
    *count -= size;
    delete held;
  };
  auto owned = std::make_unique<const Bytes>(std::move(value));
  *bytes_ += owned->size();
  return StoreValue(owned.release(), release);
}

bool StoreValues::set(const std::string& key, Bytes value, bool& made) {
  const auto found = values_.find(key);
  made = found == values_.end();
  const uint64_t more = value.size() + (made ? cost_of(key) : 0);
  if (more > most_bytes_ || *bytes_ > most_bytes_ - more) return false;
  value.shrink_to_fit();
  StoreValue kept = keep(std::move(value));
  if (made) {
    values_.emplace(key, std::move(kept));
    *bytes_ += cost_of(key);
  } else {
    found->second = std::move(kept);
  }
  return true;
}

StoreValue StoreValues::get(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : found->second;
}

bool StoreValues::erase(const std::string& key) {
  if (values_.erase(key) == 0) return false;
  *bytes_ -= cost_of(key);
  return true;
}

// Numbers are kept as text, as torch's clients read them.
bool StoreValues::add(const std::string& key, int64_t amount, int64_t& sum, bool& made) {
  int64_t before = 0;
  if (const StoreValue value = get(key)) {
    const char* const begin = reinterpret_cast<const char*>(value->data());
    if (std::from_chars(begin, begin + value->size(), before).ec != std::errc()) return false;
  }
  if (__builtin_add_overflow(before, amount, &sum)) return false;
  const std::string text = std::to_string(sum);
  return set(key, Bytes(text.begin(), text.end()), made);
}

}  // namespace towline::rendezvous
