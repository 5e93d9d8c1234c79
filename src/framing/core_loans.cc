// Payload that the lane reads after it was written (loans.h). The header before it and the message behind it are
// copied into the lane, since their memory is used again.
#include <algorithm>
#include <utility>

#include "base/sync/wake_path.h"
#include "framing/connection.h"

namespace towline::framing {
namespace {

// A system pins the pages of such a write and reports when it has sent them, which costs more than to copy a few
// pages. The kernel's documentation says from 10 KB on; scattered pieces cost more each.
constexpr std::size_t kLeastPayload = 64u << 10;
constexpr std::size_t kLeastMeanPiece = 16u << 10;

}  // namespace

// Is payload like this lent, if loans are left?
bool Connection::would_lend(const LaneState& lane, std::size_t payload, std::size_t pieces) noexcept {
  return lane.loans != nullptr && payload >= kLeastPayload && payload >= kLeastMeanPiece * pieces &&
         lane.lane->lends();
}

// `payload`: bytes of the frame that goes out next.
bool Connection::may_lend(const LaneState& lane, std::size_t payload) const noexcept {
  return would_lend(lane, payload, lane.out.frame.pieces().size()) && !lane.loans->full();
}

// The frame under way reads the memory of `part`.
void Connection::lend(LaneState& lane, Part& part) noexcept {
  lane.out.frame_part = &part;
  if (lane.out.lent) ++part.copies;
}

// One write of the frame under way, with what is queued before it.
IoResult Connection::write_lent_frame(LaneState& lane, std::span<const iovec> queued,
                                      std::size_t& offered) noexcept {
  Output& out = lane.out;
  const std::span<iovec> pieces = lane.pieces();
  std::size_t count = 0;
  offered = 0;
  const bool payload = queued.empty() && out.head_left == 0 && out.payload_left != 0;
  std::size_t most = out.head_left == 0 && queued.empty() ? out.frame.bytes() : out.head_left;
  if (payload) most = std::min(out.payload_left, piece_bytes(lane));
  for (const iovec& piece : queued) pieces[count++] = piece;
  if (most != 0) count += out.frame.head(most, pieces.subspan(count));
  for (std::size_t i = 0; i < count; ++i) offered += pieces[i].iov_len;
  return payload ? lane.lane->write_lent(pieces.first(count)) : lane.lane->write(pieces.first(count));
}

// The frame under way has been written, or never will be.
void Connection::keep_loan(LaneState& lane) noexcept {
  Output& out = lane.out;
  Loan& loan = lane.loans->push();
  loan.until = lane.lane->lent();
  loan.part = std::exchange(out.frame_part, nullptr);
  loan.slot = std::exchange(out.slot, kNoSlot);
  loan.pins.swap(out.pins);
  out.lent = false;
}

// Takes back what the lane has given back.
TOWLINE_WAKE_PATH uint32_t Connection::take_back(LaneState& lane) noexcept {
  if (lane.loans == nullptr || lane.loans->empty()) return 0;
  const uint64_t returned = lane.lane->returned();
  uint32_t taken = 0;
  for (; !lane.loans->empty() && lane.loans->front().until <= returned; ++taken) {
    Loan& loan = lane.loans->front();
    loan.pins.release(host_);
    if (loan.slot != kNoSlot) free_gather(std::exchange(loan.slot, kNoSlot));
    Part* const part = std::exchange(loan.part, nullptr);
    lane.loans->pop();
    if (part == nullptr) continue;
    --part->copies;
    if (down_)
      copy_ended(*part);
    else
      settle(*part);
  }
  return taken;
}

uint32_t Connection::take_all_back() noexcept {
  uint32_t taken = 0;
  for (const auto& lane : lanes_) taken += take_back(*lane);
  return taken;
}

bool Connection::lending() const noexcept {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const auto& lane) { return lane->loans != nullptr && !lane->loans->empty(); });
}

void Connection::call_loans_in() noexcept {
  for (const auto& lane : lanes_)
    if (lane->loans != nullptr && !lane->loans->empty()) lane->lane->abandon();
  take_all_back();
  deliver_ended();
}

}  // namespace towline::framing
