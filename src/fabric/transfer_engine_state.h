// The TransferEngine's insides, shared by its sources.
#pragma once

#include <algorithm>
#include <list>
#include <utility>

#include "base/error.h"
#include "fabric/transfer_engine.h"

namespace towline::fabric {

inline constexpr uint32_t kNoSlot = UINT32_MAX;
// That wait to be sent to one peer: an engine of the same size has no more sends under way.
inline constexpr std::size_t kMaxReplies = 4096;
inline constexpr std::size_t kMostReplies = 16 * kMaxReplies;  // to all of them

// The first byte of every message between TransferEngines.
enum class MessageKind : uint8_t {
  kUser = 0,      // the application's
  kAnnounce = 1,  // send, bytes, payload: a send; with a payload if that is short and in host memory
  kGrant = 2,     // send, receive, address, descriptor: write the bytes there
  kComplete = 3,  // receive: they are written
  kAnswer = 4,    // send, status: the payload was taken, or why the send is refused
  kWithdraw = 5,  // send: it does not come any more, and nothing is written any more
};
inline constexpr std::size_t kMessageHeader = 16;  // that records are longer by
static_assert(EngineOptions{}.record_bytes + kMessageHeader <= kLongestRecord);
inline constexpr std::size_t kMaxPayload = 512;  // of an announcement

// Whether [offset, offset + length) lies in `bytes`.
constexpr bool fits(uint64_t offset, uint64_t length, uint64_t bytes) noexcept {
  return offset <= bytes && length <= bytes - offset;
}
// The same of all these pages. There is one.
bool pages_fit(std::span<const uint32_t> pages, uint64_t page_bytes, uint64_t stride, uint64_t offset,
               uint64_t bytes) noexcept;

// Something that has an outcome and, later or at once, a fence.
struct TransferEngine::Slot {
  uint32_t index = 0;
  uint32_t generation = 1;
  SlotKind kind = SlotKind::kTransfer;
  bool used = false;
  bool released = false;
  bool fenced = false;
  bool telling = false;  // its callback is due: the slot stays until then
  bool reply = false;    // to `peer`; it counts among Replies::under_way
  Slot* next_told = nullptr;
  Status status = Status::kInProgress;
  uint32_t fences = 0;
  std::function<void(Status)> done;
  uint64_t deadline_ns = kNoDeadline;  // of all but kTransfer, whose deadlines the engine keeps

  // kTransfer: what the engine reads while it moves.
  Handle transfer;  // the engine's
  std::vector<uint8_t> message;
  PageList pages;
  std::size_t given = 0;
  towline_segment one{};
  const LocalMemory* local = nullptr;
  const RemoteMemory* remote = nullptr;
  Slot* parent = nullptr;  // a kMany, kBarrier or kSend that it is a part of
  uint32_t part = 0;       // the next, of the parent's `order`
  uint32_t parts_end = 0;

  // kMany, kBarrier. Vectors keep their room for the next user of the slot.
  struct Destination {
    Handle peer;
    uint32_t begin = 0;  // of its parts in `order`
    uint32_t end = 0;
  };
  std::vector<ScatterPart> parts;
  std::vector<uint32_t> order;  // of parts, by peer
  std::vector<const LocalMemory*> locals;
  std::vector<const RemoteMemory*> remotes;
  std::vector<Destination> destinations;
  std::size_t next_destination = 0;
  uint32_t children = 0;  // under way
  uint32_t unfenced = 0;
  uint32_t lost_fences = 0;
  Status first_failure = Status::kOk;
  bool has_message = false;
  uint32_t immediate = 0;
  uint32_t count = 0;
  uint64_t target = 0;  // kBarrier, kCounter: of the counter
  uint32_t group = 0;

  // kSend, kReceive, replies.
  Handle peer;       // kReceive: from whom; that which was chosen, or any
  bool any = false;  // kReceive: not chosen yet
  bool matched = false;
  uint64_t offset = 0;
  uint64_t bytes = 0;                 // kReceive: room, and then what has come
  uint64_t far = 0;                   // kSend: the receive; kReceive: the send
  Slot* child = nullptr;              // whose message is this one's
  std::vector<RemoteMemory> granted;  // kSend: one
  std::function<void(Status, Handle, uint64_t)> received;

  bool is_over() const noexcept { return status != Status::kInProgress; }
  Handle number() const noexcept { return {index, generation}; }
  bool uses(const LocalMemory* memory) const noexcept {
    return local == memory || std::find(locals.begin(), locals.end(), memory) != locals.end();
  }

  static std::size_t next_pages(void* context, towline_segment* out, std::size_t capacity);
  static std::size_t next_one(void* context, towline_segment* out, std::size_t capacity);
  static std::size_t next_parts(void* context, towline_segment* out, std::size_t capacity);
};

// A slot that nothing has begun for yet: it goes back unless it is kept.
class TransferEngine::Claim {
 public:
  explicit Claim(TransferEngine& engine) noexcept : engine_(engine), status_(engine.take_slot(&slot_)) {}
  ~Claim() {
    if (slot_ != nullptr) engine_.give_back(*slot_);
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  // kOk, or why there is no slot.
  Status status() const noexcept { return status_; }
  Slot& operator*() const noexcept { return *slot_; }
  Slot* operator->() const noexcept { return slot_; }
  Slot& keep() noexcept { return *std::exchange(slot_, nullptr); }

 private:
  TransferEngine& engine_;
  Slot* slot_ = nullptr;
  const Status status_;
};

// Told to the application without the lock. Outcomes are told from their slots.
struct TransferEngine::Event {
  Handle peer = {};
  bool is_message = false;  // else a count
  uint32_t immediate = 0;
  uint32_t count = 0;
  std::vector<uint8_t> message = {};
};

struct TransferEngine::Loss {
  Handle peer;
  std::string why;
};

// Room for `count` elements, at a price that many calls share.
template <class T>
void make_room(std::vector<T>& list, std::size_t count) {
  if (list.capacity() < count) list.reserve(std::max(count, 2 * list.capacity()));
}

struct TransferEngine::Group {
  uint32_t id = 0;
  std::vector<Handle> peers;
  uint32_t immediate = 0;
  uint64_t rounds = 0;  // of barriers
  bool broken = false;
};

struct TransferEngine::Counter {
  uint64_t value = 0;
  uint64_t* mirror = nullptr;
  std::vector<uint32_t> waiters;  // slots
};

// A send for which no receive is posted yet.
struct TransferEngine::Unexpected {
  Handle peer;
  uint64_t send = 0;
  uint64_t bytes = 0;
  std::vector<uint8_t> payload;
};

// To one peer.
struct TransferEngine::Replies {
  uint32_t under_way = 0;                   // in the engine
  std::list<std::vector<uint8_t>> waiting;  // behind those
  bool none() const noexcept { return under_way == 0 && waiting.empty(); }
};

}  // namespace towline::fabric
