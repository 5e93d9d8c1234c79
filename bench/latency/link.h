// A link carries 64-byte messages between two processes: written into the other side's memory, then noticed
// there. The same object, made in both, is both ends.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "support/process.h"

namespace bench {

struct Message {
  std::uint64_t number = 0;
  double sent_s = 0;  // steady clock, the same for all processes of a host
  std::array<std::byte, 48> rest{};
};
static_assert(sizeof(Message) == 64);

class Link {
 public:
  virtual ~Link() = default;
  virtual Json describe() = 0;                  // what the other end needs to connect
  virtual void connect(const Json& other) = 0;  // called on both ends at the same time
  virtual void connected() {}                   // both ends have
  virtual void send(const Message& message) = 0;
  virtual Message receive() = 0;  // waits in the link's own manner: spinning, or asleep
};

struct LinkKind {
  std::string name;
  bool sleeps;        // receive() sleeps: measured from message to woken, one way
  std::string limit;  // empty for the limits themselves
  std::function<std::unique_ptr<Link>(bool initiator)> make;
};

extern const LinkKind kFlagLink;    // limit: a flag in shared memory, both sides spin
extern const LinkKind kFutexLink;   // limit: the same, the receiver sleeps on it
extern const LinkKind kPacketLink;  // the bare program again, woken as Towline wakes: by a packet in epoll
extern const LinkKind kTowlineSpinLink;
extern const LinkKind kTowlineSleepLink;
extern const LinkKind kTowlineHostedLink;

}  // namespace bench
