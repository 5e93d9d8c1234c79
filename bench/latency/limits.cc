// The limits: a message and a sequence number in shared memory, spun on or slept on.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "link.h"
#include "support/pause.h"

namespace bench {
namespace {

struct Mailbox {
  alignas(64) Message message;
  alignas(64) std::atomic<std::uint32_t> number;
};

struct Mailboxes {
  Mailbox to_target;
  Mailbox to_initiator;
};

class MailboxLink final : public Link {
 public:
  MailboxLink(bool initiator, bool sleeps) : initiator_(initiator), sleeps_(sleeps) {
    if (!initiator) memory_ = Memory::shared("bench-mailbox", sizeof(Mailboxes));
  }
  Json describe() override { return {{"pid", getpid()}, {"descriptor", memory_.descriptor()}}; }
  void connect(const Json& other) override {
    if (initiator_) memory_ = Memory::shared_of(other.at("pid"), other.at("descriptor"), sizeof(Mailboxes));
    auto* both = reinterpret_cast<Mailboxes*>(memory_.data());
    out_ = initiator_ ? &both->to_target : &both->to_initiator;
    in_ = initiator_ ? &both->to_initiator : &both->to_target;
  }

  void send(const Message& message) override {
    out_->message = message;
    out_->number.store(++sent_, std::memory_order_release);
    if (sleeps_) syscall(SYS_futex, &out_->number, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }

  Message receive() override {
    for (Spinner spin; in_->number.load(std::memory_order_acquire) == received_;) {
      if (sleeps_) {
        syscall(SYS_futex, &in_->number, FUTEX_WAIT, received_, nullptr, nullptr, 0);
      } else {
        spin();
      }
    }
    ++received_;
    return in_->message;
  }

 private:
  bool initiator_;
  bool sleeps_;
  Memory memory_;
  Mailbox* out_ = nullptr;
  Mailbox* in_ = nullptr;
  std::uint32_t sent_ = 0;
  std::uint32_t received_ = 0;
};

}  // namespace

const LinkKind kFlagLink = {"flag", false, "",
                            [](bool initiator) { return std::make_unique<MailboxLink>(initiator, false); }};
const LinkKind kFutexLink = {"futex", true, "",
                             [](bool initiator) { return std::make_unique<MailboxLink>(initiator, true); }};

}  // namespace bench
