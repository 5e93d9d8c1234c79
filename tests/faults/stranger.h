// A stranger: a socket that speaks Towline's tcp as far as a test wants, to an agent of which it knows all that the
// agent tells its peers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/id.h"
#include "base/os/unique_fd.h"
#include "framing/wire.h"

namespace towline::faults {

// An agent as its metadata describes it.
struct Target {
  explicit Target(const std::vector<std::byte>& blob);

  Id incarnation;
  std::string name;
  std::string tcp;   // its data port, "127.0.0.1:4711"
  uint64_t key = 0;  // of its first region
  uint64_t address = 0;
};

// The metadata that the agent at `address` gives to any client.
std::vector<std::byte> blob_of(const std::string& address);
// The address at which this descriptor takes connections over TCP; empty: it does not.
std::string listens_at(int fd);

class Stranger {
 public:
  // Connects; `from` is an address of this host to come from, or empty.
  explicit Stranger(const std::string& to, const std::string& from = {});

  // Says hello as a new agent, and waits for the answer: TOWLINE_OK, why not, or TOWLINE_IO without an answer.
  int32_t hello(const Target& target, bool caller_driven, const Id& self = Id::random());
  // False: the other end is closed.
  bool say(const void* bytes, size_t count);
  // The preamble of a frame with at most one segment, at the target's region; its payload and message follow.
  bool begin_frame(framing::FrameType type, const Target& target, uint32_t payload_bytes,
                   uint32_t message_bytes);
  // A notice, as a whole frame.
  bool notice(const Target& target, const std::string& text);
  // How many whole frames of this type have arrived so far. Does not wait.
  size_t count_frames(framing::FrameType type);
  // Waits until the other end has closed; false: not within the time.
  bool closed_within(int milliseconds);
  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  uint32_t sequence_ = 0;
  std::vector<uint8_t> heard_;
};

}  // namespace towline::faults
