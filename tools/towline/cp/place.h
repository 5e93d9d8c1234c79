// The source or destination of `towline cp`: storage with a URI, or registered memory of a peer.
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
  std::string text;       // as given, with absolute paths: identifies the copy
  std::string uri;        // storage: for register_storage
  std::string path;       // storage: path of a file; empty: not a file
  std::string address;    // peer: for connect
  uint32_t region = 0;    // peer: index of the memory region, in order of registration, if it has no name
  bool numbered = false;  // peer: the index was given
  std::string name;       // peer: name of the memory region; empty: by index

  [[nodiscard]] bool is_peer() const { return kind == Kind::kPeer; }
  [[nodiscard]] bool is_object() const { return !is_peer() && path.empty(); }
};

// "peer:HOST:PORT[/NAME]" or "peer:ADDRESS[#REGION]", where ADDRESS is any address that an agent connects to and REGION
// a region's name or number; "SCHEME:..." for storage; a path without a scheme is a file. Throws Failure with the wrong text.
[[nodiscard]] Place parse_place(std::string_view text);

// Throws Failure if the peer, which has registered so many regions, has none with the place's number.
void check_number(const Place& place, const towline::Peer& peer, size_t regions);

// A place that is open: its bytes can be described to a transfer.
class OpenPlace {
 public:
  // Opens for reading. A source without bytes can't be listed. Throws Failure or towline::Error.
  static OpenPlace source(const towline::Agent& agent, const Place& place, towline::Deadline deadline);
  // Opens for writing bytes [0, bytes). The old contents of a file stay.
  static OpenPlace destination(const towline::Agent& agent, const Place& place, uint64_t bytes, bool direct,
                               towline::Deadline deadline);
  // Empties a file; other places are not changed.
  static void empty(const Place& place);

  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  // Changes when the contents behind the place may have changed: a file's time and size, a peer's
  // incarnation.
  [[nodiscard]] const std::string& version() const { return version_; }
  // The current version of storage.
  [[nodiscard]] static std::string version(const towline::Agent& agent, const Place& place);
  [[nodiscard]] bool is_peer() const { return peer_.has_value(); }
  [[nodiscard]] towline::BlockList list(const towline::Agent& agent, uint64_t offset, uint64_t bytes) const;
  // Call when everything has been written: makes it durable, or moves it into place.
  void commit() const;

 private:
  void connect(const towline::Agent& agent, const Place& place, uint32_t access, towline::Deadline deadline);

  std::optional<towline::Region> region_;
  std::optional<towline::Peer> peer_;
  towline::RegionInfo memory_{};  // the peer's region
  uint64_t bytes_ = 0;
  std::string version_;
};

}  // namespace tool::cp
