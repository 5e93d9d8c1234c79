// Limit: a byte ring in shared memory. One side copies blocks in, the other copies them out into its own;
// both spin.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "../contender.h"
#include "../target.h"
#include "support/pause.h"

namespace bench {
namespace {

constexpr char kName[] = "ring";
constexpr std::size_t kRingBytes = std::size_t{256} << 10;  // both halves stay in the cores' own caches
constexpr std::size_t kPublishBytes = std::size_t{16}
                                      << 10;  // bytes between two looks at the other side's counter

struct Ring {
  alignas(64) std::atomic<std::uint64_t> head;   // bytes put in, by the producer
  alignas(64) std::atomic<std::uint64_t> tail;   // bytes taken out, by the consumer
  alignas(64) std::atomic<std::uint64_t> asked;  // READs wanted by the initiator
  alignas(64) std::byte bytes[kRingBytes];
};

// One side's walk through its blocks, in pieces that neither leave a block nor wrap around the ring.
class Walk {
 public:
  Walk(std::byte* base, const std::vector<std::uint64_t>& blocks, std::size_t block) : block_(block) {
    for (std::uint64_t index : blocks) starts_.push_back(base + index * block);
  }

  void produce(Ring& ring) const {
    std::uint64_t head = ring.head.load(std::memory_order_relaxed);
    std::uint64_t tail = ring.tail.load(std::memory_order_acquire);
    for (std::byte* start : starts_)
      for (std::size_t done = 0; done < block_;) {
        const std::size_t bytes = piece(head, done);
        for (Spinner spin; head + bytes - tail > kRingBytes; spin())
          tail = ring.tail.load(std::memory_order_acquire);
        std::memcpy(ring.bytes + head % kRingBytes, start + done, bytes);
        head += bytes;
        done += bytes;
        ring.head.store(head, std::memory_order_release);
      }
  }

  void consume(Ring& ring) const {
    std::uint64_t tail = ring.tail.load(std::memory_order_relaxed);
    std::uint64_t head = ring.head.load(std::memory_order_acquire);
    for (std::byte* start : starts_)
      for (std::size_t done = 0; done < block_;) {
        const std::size_t bytes = piece(tail, done);
        for (Spinner spin; head - tail < bytes; spin()) head = ring.head.load(std::memory_order_acquire);
        std::memcpy(start + done, ring.bytes + tail % kRingBytes, bytes);
        tail += bytes;
        done += bytes;
        ring.tail.store(tail, std::memory_order_release);
      }
  }

 private:
  std::size_t piece(std::uint64_t at, std::size_t done) const {
    return std::min({kPublishBytes, block_ - done, kRingBytes - at % kRingBytes});
  }

  std::size_t block_;
  std::vector<std::byte*> starts_;
};

class RingLimit final : public PairedContender {
 public:
  explicit RingLimit(Session& session) : PairedContender(kName, session) {}

 private:
  void connect(const Json& target) override {
    memory_ = Memory::shared_of(target.at("pid"), target.at("descriptor"), sizeof(Ring));
    ring_ = reinterpret_cast<Ring*>(memory_.data());
  }
  void prepare_cell() override { walk_ = std::make_unique<Walk>(local(), lists().local, cell().block); }
  bool target_serves() const override { return true; }

  void run_once() override {
    if (cell().op == Op::kWrite) {
      walk_->produce(*ring_);
      const std::uint64_t head = ring_->head.load(std::memory_order_relaxed);
      for (Spinner spin; ring_->tail.load(std::memory_order_acquire) != head; spin()) {
      }
    } else {
      ring_->asked.fetch_add(1, std::memory_order_release);
      walk_->consume(*ring_);
    }
  }

  Memory memory_;
  Ring* ring_ = nullptr;
  std::unique_ptr<Walk> walk_;
};

class RingResponder final : public Responder {
 public:
  explicit RingResponder(TargetMemory& memory) : memory_(memory) {}

  Json setup(const Json&) override {
    shared_ = Memory::shared("bench-ring", sizeof(Ring));
    ring_ = reinterpret_cast<Ring*>(shared_.data());
    return {{"pid", getpid()}, {"descriptor", shared_.descriptor()}};
  }
  void prepare(const Cell& cell, const BlockLists& lists) override {
    op_ = cell.op;
    walk_ = std::make_unique<Walk>(memory(), lists.remote, cell.block);
  }
  void serve(std::uint64_t iterations) override {
    for (std::uint64_t i = 0; i < iterations; ++i) {
      if (op_ == Op::kWrite) {
        walk_->consume(*ring_);
        continue;
      }
      for (Spinner spin; ring_->asked.load(std::memory_order_acquire) == answered_; spin()) {
      }
      ++answered_;
      walk_->produce(*ring_);
    }
  }
  std::byte* memory() override { return memory_.anonymous(); }

 private:
  TargetMemory& memory_;
  Memory shared_;
  Ring* ring_ = nullptr;
  Op op_ = Op::kWrite;
  std::uint64_t answered_ = 0;
  std::unique_ptr<Walk> walk_;
};

}  // namespace

const Family kRingFamily = {
    [](Session& session, Contenders& out) { out.push_back(std::make_unique<RingLimit>(session)); },
    [](const std::string& name, TargetMemory& memory) -> std::unique_ptr<Responder> {
      if (name != kName) return nullptr;
      return std::make_unique<RingResponder>(memory);
    }};

}  // namespace bench
