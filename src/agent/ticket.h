// The right to one event in a queue (event_queue.h), held by the code that will report it.
#pragma once

#include <memory>

namespace towline {

struct Ticket;

struct TicketGivesBack {
  void operator()(Ticket* ticket) const noexcept;
};
// Nothing comes of one that is destroyed.
using TicketHold = std::unique_ptr<Ticket, TicketGivesBack>;

}  // namespace towline
