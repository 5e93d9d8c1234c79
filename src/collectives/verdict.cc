#include "collectives/verdict.h"

#include <algorithm>
#include <iterator>

namespace towline::collectives {

void Verdict::settle(Breakage reason) {
  if (settled_) return;
  settled_ = true;
  reason_ = collectives::settled(std::move(reason));
}

bool Verdict::take(int rank, Breakage reason, uint64_t now_ns) {
  if (settled_) return false;
  if (reason.awaited.empty()) {
    settle(std::move(reason));
    return false;
  }
  const bool first = claims_.empty();
  if (first) due_ns_ = now_ns + kClaimNs;
  claimed_[static_cast<size_t>(rank)] = true;
  claims_.push_back(std::move(reason));
  look(now_ns);
  return first && !settled_;
}

void Verdict::look(uint64_t now_ns) {
  if (!waits()) return;
  const auto left = std::ranges::count(claimed_, false);
  if (left > 1 && now_ns < due_ns_) return;
  for (Breakage& claim : claims_) {
    std::vector<int> named;
    std::ranges::copy_if(claim.awaited, std::back_inserter(named), [this](int rank) { return silent(rank); });
    if (named.empty()) continue;
    claim.awaited = std::move(named);
    return settle(std::move(claim));
  }
  // They wait for one another, or for ranks that wait.
  if (left == 0 || now_ns >= due_ns_) settle(std::move(claims_.front()));
}

}  // namespace towline::collectives
