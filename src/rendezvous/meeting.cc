#include "rendezvous/meeting.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/id.h"
#include "base/log.h"

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

std::istringstream text_of(const Bytes& bytes) { return std::istringstream({bytes.begin(), bytes.end()}); }

// What a rank and the rank 0 of another size say to one another: the rank writes beside rank 0's number that it came, and rank 0
// repeats what it reads there. The number and the rank's token are random, so that nobody believes what an earlier job has left.
class OtherSizes {
 public:
  OtherSizes(std::shared_ptr<Store> named, int rank, int size)
      : store_(std::move(named), "sizes/"), rank_(rank), size_(size), token_(Id::random().to_hex()) {}

  void lead(const std::string& number) {
    number_ = number;
    store_.set("led", as_bytes(fmt::format("{} {}", size_, number)));
  }
  // What is wrong with the store, the wait itself finds out.
  void look() {
    try {
      if (rank_ == 0)
        look_for_others();
      else if (seen_.empty())
        look_for_leader();
    } catch (const Error& error) {
      if (error.code() == Status::kCancelled) throw;
    }
  }
  // For the end of a message: ": rank 0 was given 2 ranks".
  [[nodiscard]] const std::string& seen() const { return seen_; }

 private:
  void look_for_others() {
    const auto came = store_.peek("came/" + number_);
    int rank = 0;
    int size = 0;
    if (!came || !(text_of(*came) >> rank >> size)) return;
    store_.set("heard/" + number_, *came);
    if (seen_.empty()) say(rank, size);
  }
  void look_for_leader() {
    const auto led = store_.peek("led");
    int size = 0;
    std::string number;
    if (!led || !(text_of(*led) >> size >> number) || size == size_ || !Id::from_hex(number)) return;
    const Bytes came = as_bytes(fmt::format("{} {} {}", rank_, size_, token_));
    if (store_.peek("heard/" + number) == came) return say(0, size);
    store_.set("came/" + number, came);  // anew: another rank's may have replaced it
  }
  void say(int rank, int size) {
    seen_ = fmt::format(": rank {} was given {} rank{}", rank, size, size == 1 ? "" : "s");
    TOWLINE_LOG(kWarning,
                "rank {} of {} waits for others{}: give all ranks of a communicator the same size, or "
                "communicators of different sizes names of their own",
                rank_, size_, seen_);
  }
  PrefixStore store_;
  const int rank_;
  const int size_;
  const std::string token_;
  std::string number_;  // of rank 0
  std::string seen_;
};

[[noreturn]] void fail_absent(int rank, int size, int absent, const OtherSizes& sizes) {
  fail(Status::kTimedOut, "rank {} of {} timed out waiting for rank {} to join{}", rank, size, absent,
       sizes.seen());
}

// Waits for a key that comes only from ranks of the same size.
std::optional<Bytes> wait_for(Store& store, const std::string& key, Deadline deadline, OtherSizes& sizes) {
  for (;;) {
    const uint64_t now = monotonic_now_ns();
    if (auto found = get_by(store, key, Deadline::at(std::min(deadline.ns(), now + kLookNs)))) return found;
    sizes.look();
    if (deadline.passed(monotonic_now_ns())) return std::nullopt;
  }
}

// Of two processes with one rank the later one's word is there; the earlier one would wait for an answer to its own.
void check_word(Store& store, int rank, int size, const std::string& word) {
  const auto there = get_by(store, word_of(rank), Deadline::after(monotonic_now_ns(), kAbsentNs));
  if (there && !std::ranges::equal(*there, word))
    fail(Status::kAlreadyExists,
         "another process came as rank {} of {} too: give each process a rank of its own", rank, size);
}

std::shared_ptr<Store> lead(std::shared_ptr<Store> store, int size, Deadline deadline, OtherSizes& sizes) {
  const std::string number = Id::random().to_hex();
  auto own = std::make_shared<PrefixStore>(store, number + "/");
  store->set(kNumber, as_bytes(number));
  sizes.lead(number);
  std::string answer;
  for (int rank = 1; rank < size; ++rank) {
    const auto word = wait_for(*own, word_of(rank), deadline, sizes);
    if (!word) fail_absent(0, size, rank, sizes);
    answer.append(word->begin(), word->end());
    answer += '\n';
  }
  own->set(kAnswer, as_bytes(answer));
  return own;
}

std::shared_ptr<Store> follow(std::shared_ptr<Store> store, int rank, int size, Deadline deadline,
                              OtherSizes& sizes) {
  const std::string word = Id::random().to_hex();
  std::string number;
  std::shared_ptr<Store> own;
  for (;;) {
    const auto found = wait_for(*store, kNumber, deadline, sizes);
    if (!found) fail_absent(rank, size, 0, sizes);
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
    sizes.look();
    if (deadline.passed(monotonic_now_ns())) break;
    if (answer) std::this_thread::sleep_for(std::chrono::nanoseconds(kPauseNs));
  }
  for (int other = 1; other < size; ++other)
    if (!get_by(*own, word_of(other), Deadline::after(monotonic_now_ns(), kAbsentNs)))
      fail_absent(rank, size, other, sizes);
  fail_absent(rank, size, 0, sizes);
}

}  // namespace

std::shared_ptr<Store> part_of(std::shared_ptr<Store> named, int size, uint64_t count) {
  return std::make_shared<PrefixStore>(std::move(named), fmt::format("{}/{}/", size, count));
}

std::shared_ptr<Store> meet(std::shared_ptr<Store> named, int rank, int size, Deadline deadline,
                            uint64_t count) {
  auto store = part_of(named, size, count);
  if (size == 1) return store;
  OtherSizes sizes(std::move(named), rank, size);
  return rank == 0 ? lead(std::move(store), size, deadline, sizes)
                   : follow(std::move(store), rank, size, deadline, sizes);
}

}  // namespace towline::rendezvous
