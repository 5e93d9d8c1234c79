#include "fabric/null/null_domain.h"

#include <algorithm>

namespace towline::fabric {
namespace {

class NullDomain final : public Domain {
 public:
  explicit NullDomain(DomainTraits traits) : traits_(std::move(traits)) {
    if (traits_.kind.empty()) traits_.kind = "null";
    if (traits_.name.empty()) traits_.name = "null";
    ring_.resize(std::size_t{traits_.completion_depth} + 1);
  }

  const DomainTraits& traits() const noexcept override { return traits_; }
  std::vector<uint8_t> address() const override { return {}; }
  Registration register_memory(const MemoryToRegister& memory) override {
    return {1, 1, reinterpret_cast<uint64_t>(memory.address), 0};
  }
  void deregister_memory(const Registration&) noexcept override {}
  std::vector<uint8_t> open(uint32_t, ConnectionEnd) override { return {}; }
  void connect(uint32_t, std::span<const uint8_t>) override {}
  void stop(uint32_t) noexcept override {}
  void release(uint32_t connection) noexcept override {
    for (std::size_t i = head_; i != tail_; i = next(i))
      if (ring_[i].connection == connection) ring_[i].connection = UINT32_MAX;
  }

  std::size_t post(uint32_t connection, const WorkRequest* requests, std::size_t count) noexcept override {
    for (std::size_t i = 0; i < count; ++i) {
      if (!requests[i].signalled) continue;
      if (next(tail_) == head_) return i;
      ring_[tail_] = {requests[i].cookie, 0,           connection,
                      requests[i].length, Status::kOk, CompletionKind::kRequest};
      tail_ = next(tail_);
    }
    return count;
  }
  std::size_t post_receives(uint32_t, const ReceiveRequest*, std::size_t count) noexcept override {
    return count;
  }

  std::size_t poll(Completion* completions, std::size_t capacity) noexcept override {
    std::size_t count = 0;
    for (; count < capacity && head_ != tail_; head_ = next(head_))
      if (ring_[head_].connection != UINT32_MAX) completions[count++] = ring_[head_];
    return count;
  }

 private:
  std::size_t next(std::size_t index) const noexcept { return index + 1 == ring_.size() ? 0 : index + 1; }

  DomainTraits traits_;
  std::vector<Completion> ring_;
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
};

}  // namespace

std::unique_ptr<Domain> make_null_domain(DomainTraits traits) {
  return std::make_unique<NullDomain>(std::move(traits));
}

}  // namespace towline::fabric
