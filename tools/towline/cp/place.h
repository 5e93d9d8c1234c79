// What `towline cp` copies from or to: storage that a URI names, or memory that a peer has registered.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <towline/storage.hpp>
#include <towline/towline.hpp>

namespace tool::cp {

struct Place {
  enum class Kind { kStorage, kPeer };
  Kind kind = Kind::kStorage;
  std::string text;     // as it was asked for, paths made absolute: tells whether a copy is the same one
  std::string uri;      // storage: for register_storage
  std::string path;     // storage: of a file; empty: something else
  std::string address;  // peer: for connect
  uint32_t region = 0;  // peer: which of its memory regions, in the order in which it registered them

  [[nodiscard]] bool is_peer() const { return kind == Kind::kPeer; }
  [[nodiscard]] bool is_object() const { return !is_peer() && path.empty(); }
};

// "peer:ADDRESS[#REGION]", where ADDRESS is whatever an agent connects to; "SCHEME:..." for storage, a path
// without a scheme being a file. Throws Failure with the text that was wrong.
[[nodiscard]] Place parse_place(std::string_view text);

// A place that is open: its bytes can be described to a transfer.
class OpenPlace {
 public:
  // To read from; what has no bytes can't be listed. Throws Failure or towline::Error.
  static OpenPlace source(const towline::Agent& agent, const Place& place, towline::Deadline deadline);
  // To write bytes [0, bytes) of; what a file has already stays.
  static OpenPlace destination(const towline::Agent& agent, const Place& place, uint64_t bytes, bool direct,
                               towline::Deadline deadline);
  // A file loses what it has; nothing else does.
  static void empty(const Place& place);

  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  // Changes when what is behind the place does: a file's time and size, a peer's incarnation.
  [[nodiscard]] const std::string& version() const { return version_; }
  // Of storage, as it is now.
  [[nodiscard]] static std::string version(const towline::Agent& agent, const Place& place);
  [[nodiscard]] bool is_peer() const { return peer_.has_value(); }
  [[nodiscard]] towline::BlockList list(const towline::Agent& agent, uint64_t offset, uint64_t bytes) const;
  // Everything has been written: makes it durable, or puts it in its place.
  void commit() const;

 private:
  void connect(const towline::Agent& agent, const Place& place, uint32_t access, towline::Deadline deadline);

  std::optional<towline::Region> region_;
  std::optional<towline::Peer> peer_;
  towline::RegionInfo memory_{};  // of the peer
  uint64_t bytes_ = 0;
  std::string version_;
};

}  // namespace tool::cp
