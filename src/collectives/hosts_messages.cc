#include "collectives/hosts_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "collectives/calls/types.h"
#include "collectives/hosts_hop.h"

namespace towline::collectives {
namespace {

constexpr uint64_t kLookNs = 20 * kMillisecondNs;  // for a communicator that broke or closes
constexpr uint64_t kCloseNs = 2 * kSecondNs;       // for sends that are under way

}  // namespace

size_t HostsMessages::strands() const {
  const std::lock_guard lock(mutex_);
  return strands_.size();
}

HostsMessages::Strand& HostsMessages::strand_to(int peer, bool sends) {
  const std::lock_guard lock(mutex_);
  return strands_.try_emplace({peer, sends}, *this, peer, sends).first->second;
}

// A send first waits for the message before it, so that its first chunk may go into staging; then each chunk waits for the one
// before the last. A receive waits for each chunk.
std::vector<towline_collective_step_t> HostsMessages::cut_for(const Strand& strand,
                                                              const towline_collective_t& call,
                                                              uint64_t timeout_ns) const {
  const uint64_t element = datatype_bytes(call.datatype);
  const uint64_t bytes = call.count * element;
  const uint64_t chunks = std::max<uint64_t>(1, (bytes + half_ - 1) / half_);
  std::vector<towline_collective_step_t> steps;
  const auto add = [&](uint32_t kind) -> towline_collective_step_t& {
    towline_collective_step_t& step = steps.emplace_back();
    step.kind = kind;
    step.strand = strand.number;
    return step;
  };
  const auto stage = [&](uint64_t i) { return static_cast<uint8_t*>(strand.memory) + (i & 1) * half_; };
  const auto move = [&](uint64_t i) {
    const uint64_t begin = i * half_;
    const uint64_t size = std::min(half_, bytes - begin);
    if (size == 0) return;
    const auto data = reinterpret_cast<uintptr_t>(strand.sends ? call.input : call.output) + begin;
    towline_collective_step_t& step = add(TOWLINE_STEP_MOVE);
    step.bytes = size;
    step.from = strand.sends ? reinterpret_cast<const void*>(data) : stage(i);
    step.to = strand.sends ? stage(i) : reinterpret_cast<void*>(data);
  };
  const auto post = [&](uint64_t i) {
    Hop hop = {};
    hop.message = {call.tag, call.count, call.datatype};
    hop.first = i == 0 ? 1 : 0;
    hop.offset = (i & 1) * half_;
    hop.bytes = std::min(half_, bytes - i * half_);
    hop.timeout_ns = timeout_ns;
    std::memcpy(add(TOWLINE_STEP_POST).words, &hop, sizeof hop);
  };
  if (strand.sends) {
    for (uint64_t i = 0; i < chunks; ++i) {
      if (i != 1) add(TOWLINE_STEP_AWAIT);
      move(i);
      post(i);
    }
    if (chunks > 1) add(TOWLINE_STEP_AWAIT);
  } else {
    for (uint64_t i = 0; i <= chunks; ++i) {
      if (i < chunks) post(i);
      if (i == 0) continue;
      add(TOWLINE_STEP_AWAIT);
      move(i - 1);
    }
  }
  return steps;
}

// ---- On the thread of a strand

int32_t HostsMessages::carry(void* context, const uint64_t* words) {
  const auto& strand = *static_cast<const Strand*>(context);
  return run_hop<Hop>(strand.owner.cpu_, "a message", words,
                      [&](const Hop& hop) { return strand.owner.run(strand, hop); });
}

Status HostsMessages::run(const Strand& strand, const Hop& hop) {
  const Deadline deadline = Deadline::after(monotonic_now_ns(), hop.timeout_ns);
  if (hop.first != 0) {
    Announced theirs = hop.message;
    if (const Status status = move(strand, hop, &theirs, sizeof theirs, deadline); is_error(status))
      return status;
    if (!(theirs == hop.message))
      return cpu_.breaker().raise(Status::kMismatch,
                                  fmt::format("ranks disagree: rank {} is at {}, rank {} at {}", strand.peer,
                                              describe(true, theirs, cpu_.rank()), cpu_.rank(),
                                              describe(false, hop.message, strand.peer)));
  }
  if (hop.bytes == 0) return Status::kOk;
  return move(strand, hop, static_cast<uint8_t*>(strand.memory) + hop.offset, hop.bytes, deadline);
}

Status HostsMessages::move(const Strand& strand, const Hop& hop, void* data, uint64_t bytes,
                           Deadline deadline) {
  Message message;
  message.is_send = strand.sends;
  message.peer = strand.peer;
  message.data = static_cast<uint8_t*>(data);
  message.bytes = bytes;
  MessageEngine& engine = cpu_.messages();
  engine.start(message);
  for (;;) {
    const Status status = engine.test(message);
    if (status == Status::kOk) return status;
    const uint64_t now = monotonic_now_ns();
    const uint64_t closing = closing_ns_;
    const bool late = deadline.passed(now) || cpu_.breaker().hurried();
    if (!is_error(status) && !late && (closing == 0 || now - closing < kCloseNs)) {
      cpu_.message_wait(std::min(now + kLookNs, deadline.ns()));
      continue;
    }
    engine.forget(message);
    if (is_error(status)) return status;
    if (!late) return Status::kCancelled;  // nobody takes it any more
    return cpu_.breaker().raise({Status::kTimedOut,
                                 fmt::format("rank {} timed out in {}", cpu_.rank(),
                                             describe(strand.sends, hop.message, strand.peer)),
                                 {strand.peer}});
  }
}

std::string HostsMessages::describe(bool sends, const Announced& message, int peer) const {
  return fmt::format("{} of {} {} {} rank {} (tag {})", sends ? "send" : "recv", message.count,
                     datatype_bytes(static_cast<uint32_t>(message.datatype)) == 0
                         ? "of an unknown type"
                         : datatype_name(static_cast<uint32_t>(message.datatype)),
                     sends ? "to" : "from", peer, message.tag);
}

}  // namespace towline::collectives
