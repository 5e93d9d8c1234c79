// The part of the store's server without sockets: it parses requests of torch's TCPStore protocol and keeps
// the values that they set and get. One thread.
//
// Clients are not trusted: everything that a client can make the server keep has a limit, each byte is parsed
// once, and a value is never copied for a reply.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rendezvous/store.h"

namespace towline::rendezvous {

// Request numbers: the part of torch's TCPStore that ranks need to meet.
enum class StoreQuery : uint8_t {
  kValidate = 0,     // magic (u32); no answer. The first of a connection
  kSet = 1,          // key, value; no answer
  kGet = 3,          // key; answers the value, empty if the key does not exist
  kAdd = 4,          // key, i64; answers the sum as i64
  kCheck = 5,        // keys; answers a byte, 0 if all exist
  kWait = 6,         // keys; answers a byte, 0, once all exist
  kKeys = 7,         // answers the number of keys as i64
  kDelete = 8,       // key; answers the number of deleted keys as i64
  kCancelWait = 12,  // answers a byte, 1
  kPing = 13,        // u32; answers it
};

constexpr uint32_t kStoreMagic = 0x3C85F7CE;

// Limits of one request.
constexpr uint64_t kMostValueBytes = 64u << 20;
constexpr uint64_t kMostKeyBytes = 8192;
constexpr uint64_t kMostKeys = 65536;
constexpr uint64_t kMostKeysBytes = 4u << 20;

struct StoreRequest {
  StoreQuery query = StoreQuery::kValidate;
  std::vector<std::string> keys;
  Bytes value;
  int64_t number = 0;  // of kAdd, kPing and kValidate
};

// Assembles requests from pieces of any size.
class StoreRequestReader {
 public:
  enum class Result : uint8_t { kMore, kWhole, kBroken };
  // Consumes the bytes of the current request from the front of `bytes`. kWhole: request() is complete, and
  // the next call begins another. kBroken: the bytes are not a request, and the rest is meaningless.
  Result take(std::span<const uint8_t>& bytes);
  StoreRequest& request() noexcept { return request_; }
  // Whether a request is incomplete, and the bytes that it holds.
  bool under_way() const noexcept { return under_way_; }
  uint64_t held_bytes() const noexcept { return request_.value.capacity() + keys_bytes_; }

 private:
  enum class Item : uint8_t { kNumber32, kNumber64, kKeyCount, kKey, kValue };

  bool begin(uint8_t query);
  bool number(size_t size, std::span<const uint8_t>& bytes, uint64_t& value);
  Result field(Item item, std::span<const uint8_t>& bytes);

  StoreRequest request_;
  bool under_way_ = false;
  std::vector<Item> items_;  // still to come, the next one last
  uint8_t digits_[8] = {};   // of a number that arrived in part
  size_t digits_there_ = 0;
  bool sized_ = false;  // the size of the current field is known
  uint64_t field_left_ = 0;
  uint64_t keys_left_ = 0;
  uint64_t keys_bytes_ = 0;
};

// Bytes that replies share with the store.
using StoreValue = std::shared_ptr<const Bytes>;

// The values. Values that only replies still hold count as well.
class StoreValues {
 public:
  explicit StoreValues(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  // False: there is no room. `made`: the key did not exist.
  bool set(const std::string& key, Bytes value, bool& made);
  // Null if the key does not exist.
  StoreValue get(const std::string& key) const;
  bool contains(const std::string& key) const { return values_.contains(key); }
  bool erase(const std::string& key);
  // Adds to the number that a value holds as text; a missing key counts as 0. False: no room, or not a
  // number.
  bool add(const std::string& key, int64_t amount, int64_t& sum, bool& made);
  size_t size() const noexcept { return values_.size(); }
  uint64_t bytes() const noexcept { return *bytes_; }

 private:
  StoreValue keep(Bytes value);

  const uint64_t most_bytes_;
  std::shared_ptr<uint64_t> bytes_ = std::make_shared<uint64_t>(0);  // lives as long as the last value
  std::unordered_map<std::string, StoreValue> values_;
};

}  // namespace towline::rendezvous
