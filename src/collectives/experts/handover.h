// A rank's memory for other ranks of the host, one at a time and at any time: ranks join a group that is at work. A rank of the
// same process takes the piece itself; another process asks at a Unix socket and gets a descriptor. Processes of other users
// are turned away.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/sync/wake.h"
#include "collectives/experts/proxy.h"
#include "gpu/kernel_device.h"
#include "gpu/symmetric_wire.h"

namespace towline::collectives::experts {

inline constexpr std::size_t kMostHost = 255;  // bytes of a host's name

// What a rank tells the others, by whatever way the application has.
struct Description {
  uint32_t rank = 0;
  uint32_t capacity = 0;
  uint32_t local = 0;
  cuda::PieceNotice piece;
  std::string host;    // that the application counts it on; empty: the real one
  bool opens = false;  // open_to_hosts() is possible there
  RemoteSide side;     // without metadata: it was not called
};
std::vector<uint8_t> encode(const Description& description);
// Null: another build's, or none.
std::optional<Description> decode_description(std::span<const uint8_t> bytes);

// Hands a piece over until it goes.
class PieceServer {
 public:
  explicit PieceServer(std::shared_ptr<cuda::SharedPiece> piece);  // throws Error
  PieceServer(const PieceServer&) = delete;
  PieceServer& operator=(const PieceServer&) = delete;
  ~PieceServer();
  [[nodiscard]] uint64_t key() const noexcept { return key_; }
  [[nodiscard]] const std::string& socket() const noexcept { return name_; }

 private:
  void serve(std::span<const uint8_t> hello) noexcept;

  const std::shared_ptr<cuda::SharedPiece> piece_;
  const uint64_t key_;
  const std::string name_;
  UniqueFd listener_;
  UniqueFd descriptor_;
  UniqueFd spare_;
  EventFd stop_;
  std::thread thread_;
};

// The rank's memory can be mapped here, by what both say of themselves.
bool within_reach(const Description& from, const cuda::Gpu& mine, const std::string& host);
// The same for all ranks that are within one another's reach, and of no other.
uint64_t host_of(const Description& description);
// The piece of the rank, for this GPU. Throws Error.
std::shared_ptr<cuda::SharedPiece> take_piece(cuda::KernelDevice& device, uint32_t gpu,
                                              const Description& from, Deadline deadline);

}  // namespace towline::collectives::experts
