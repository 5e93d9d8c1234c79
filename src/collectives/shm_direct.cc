// Copies straight out of another rank's memory: see direct_choice.h.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "collectives/shm_group.h"

namespace towline::collectives {
namespace {

// Between pieces a rank looks whether the group is broken.
constexpr uint64_t kReadBytes = 8 << 20;

bool read_memory(pid_t pid, void* to, uint64_t from, uint64_t bytes) noexcept {
  iovec local = {to, bytes};
  iovec remote = {reinterpret_cast<void*>(from), bytes};
  return ::process_vm_readv(pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
}

}  // namespace

Status ShmGroup::choice_phase(const Call& call) {
  const DirectChoice::Said mine = choice_.say();
  if (const Status status = first_phase(call, &mine, sizeof mine); is_error(status)) return status;
  const auto said_by = [&](int other) {
    DirectChoice::Said said;
    std::memcpy(&said, line(other, phase_).inlined, sizeof said);
    return said;
  };
  if (index_ == 0) {
    uint64_t slowest = 0;
    for (int other = 0; other < size(); ++other) slowest = std::max(slowest, said_by(other).took_ns);
    choice_.slowest_took(slowest, settings_.single_copy);
  }
  choice_.agree(said_by(0).ways);
  return Status::kOk;
}

bool ShmGroup::read_from(int other, void* to, uint64_t from, uint64_t bytes) noexcept {
  auto* at = static_cast<uint8_t*>(to);
  for (uint64_t done = 0; done < bytes; done += kReadBytes) {
    if (broken()) return true;  // the next phase says why
    const uint64_t piece = std::min(kReadBytes, bytes - done);
    if (!read_memory(processes_[static_cast<size_t>(other)], at + done, from + done, piece)) return false;
  }
  return true;
}

// The process that a rank names is that rank's if it has the rank's token where the rank says.
Status ShmGroup::prove_direct(Deadline deadline) {
  struct Proof {
    uint64_t process;
    uint64_t address;
    uint64_t token;
  };
  const Proof mine = {static_cast<uint64_t>(::getpid()), reinterpret_cast<uint64_t>(&token_), token_};
  const uint64_t at = next_stage();
  std::memcpy(half(index_, at), &mine, sizeof mine);
  if (const Status status = phase(deadline); is_error(status)) return status;
  bool good = settings_.single_copy != SingleCopy::kNever;
  processes_.resize(ranks_.size());
  for (int other = 0; other < size() && good; ++other) {
    Proof proof;
    std::memcpy(&proof, half(other, at), sizeof proof);
    processes_[static_cast<size_t>(other)] = static_cast<pid_t>(proof.process);
    uint64_t found = 0;
    good = read_memory(static_cast<pid_t>(proof.process), &found, proof.address, sizeof found) &&
           found == proof.token;
  }
  if (const Status status = everyone(deadline, good); is_error(status)) return status;
  choice_.prove(good, settings_.single_copy);
  return Status::kOk;
}

const char* ShmGroup::describe_choice() const noexcept {
  if (settings_.single_copy == SingleCopy::kNever) return "never";
  if (choice_.is_proved() && !choice_.works()) return "no: a rank can't read another's memory, or must not";
  return settings_.single_copy == SingleCopy::kAlways ? "always" : "auto";
}

Status ShmGroup::everyone(Deadline deadline, bool& good) {
  const uint64_t at = next_stage();
  *half(index_, at) = good ? 1 : 0;
  if (const Status status = phase(deadline); is_error(status)) return status;
  for (int other = 0; other < size(); ++other) good = good && *half(other, at) == 1;
  return Status::kOk;
}

}  // namespace towline::collectives
