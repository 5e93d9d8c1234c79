// The two processes of a run meet at an address, or at an etcd server. The first to come is rank 0, the initiator.
// They exchange texts over a Towline agent of their own, apart from the one that is measured.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <towline/directory.hpp>
#include <towline/towline.hpp>
#include "flags.h"

namespace nixlbench {

class Meeting {
 public:
  // Waits for the other process. Throws std::exception.
  explicit Meeting(const Flags& flags);

  [[nodiscard]] int rank() const noexcept { return rank_; }
  void send(const std::string& text) const;
  // The next text of the other process; throws when it has gone, or says nothing for two minutes.
  [[nodiscard]] std::string receive() const;

 private:
  void meet_at_address(const Flags& flags);
  void meet_at_etcd(const Flags& flags);
  void greet(const std::string& address);

  int rank_ = 0;
  std::unique_ptr<towline::Agent> agent_;
  std::unique_ptr<towline::Directory> directory_;
  std::optional<towline::Peer> other_;
};

}  // namespace nixlbench
