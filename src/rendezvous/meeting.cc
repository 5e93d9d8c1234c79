#include "rendezvous/meeting.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/id.h"

namespace towline::rendezvous {
namespace {

constexpr uint64_t kLookNs = 500 * kMillisecondNs;    // wait for an answer before reading the number again
constexpr uint64_t kPauseNs = 20 * kMillisecondNs;    // pause after an answer to other ranks
constexpr uint64_t kAbsentNs = 200 * kMillisecondNs;  // wait for a rank's key, only to name the missing ranks

constexpr const char* kNumber = "number";
constexpr const char* kAnswer = "answer";
std::string word_of(int rank) { return fmt::format("word/{}", rank); }

Bytes as_bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::optional<Bytes> get_by(Store& store, const std::string& key, Deadline deadline) {
  try {
    return store.get(key, deadline);
  } catch (const Error& error) {
    if (error.code() != Status::kTimedOut) throw;
    return std::nullopt;
  }
}

[[noreturn]] void fail_absent(int rank, int size, int absent) {
  fail(Status::kTimedOut, "rank {} of {} timed out waiting for rank {} to join", rank, size, absent);
}

// Of two processes with one rank the later one's word is there; the earlier one would wait for an answer to its own.
void check_word(Store& store, int rank, int size, const std::string& word) {
  const auto there = get_by(store, word_of(rank), Deadline::after(monotonic_now_ns(), kAbsentNs));
  if (there && !std::ranges::equal(*there, word))
    fail(Status::kAlreadyExists,
         "another process came as rank {} of {} too: give each process a rank of its own", rank, size);
}

std::shared_ptr<Store> lead(std::shared_ptr<Store> store, int size, Deadline deadline) {
  const std::string number = Id::random().to_hex();
  auto own = std::make_shared<PrefixStore>(store, number + "/");
  store->set(kNumber, as_bytes(number));
  std::string answer;
  for (int rank = 1; rank < size; ++rank) {
    const auto word = get_by(*own, word_of(rank), deadline);
    if (!word) fail_absent(0, size, rank);
    answer.append(word->begin(), word->end());
    answer += '\n';
  }
  own->set(kAnswer, as_bytes(answer));
  return own;
}

std::shared_ptr<Store> follow(std::shared_ptr<Store> store, int rank, int size, Deadline deadline) {
  const std::string word = Id::random().to_hex();
  std::string number;
  std::shared_ptr<Store> own;
  for (;;) {
    const auto found = get_by(*store, kNumber, deadline);
    if (!found) fail_absent(rank, size, 0);
    if (own == nullptr || !std::ranges::equal(*found, as_bytes(number))) {
      number.assign(found->begin(), found->end());
      if (!Id::from_hex(number)) fail(Status::kProtocol, "the store's \"{}\" is no identity", kNumber);
      own = std::make_shared<PrefixStore>(store, number + "/");
      own->set(word_of(rank), as_bytes(word));
    }
    const uint64_t now = monotonic_now_ns();
    const auto answer = get_by(*own, kAnswer, Deadline::at(std::min(deadline.ns(), now + kLookNs)));
    if (answer && std::string(answer->begin(), answer->end()).find(word) != std::string::npos) return own;
    check_word(*own, rank, size, word);
    if (deadline.passed(monotonic_now_ns())) break;
    if (answer) std::this_thread::sleep_for(std::chrono::nanoseconds(kPauseNs));
  }
  for (int other = 1; other < size; ++other)
    if (!get_by(*own, word_of(other), Deadline::after(monotonic_now_ns(), kAbsentNs)))
      fail_absent(rank, size, other);
  fail_absent(rank, size, 0);
}

}  // namespace

std::shared_ptr<Store> meet(std::shared_ptr<Store> store, int rank, int size, Deadline deadline) {
  if (size == 1) return store;
  return rank == 0 ? lead(std::move(store), size, deadline) : follow(std::move(store), rank, size, deadline);
}

}  // namespace towline::rendezvous
