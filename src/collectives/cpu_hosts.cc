// Operations over several hosts. Where every host has one rank, they are those of TcpGroup. Otherwise each
// host's first rank, its leader, speaks for it: a host's ranks come together in shared memory, leaders over
// TCP, and hosts spread what their leader got. What has no common part to save on (all_to_all, rooted gathers
// and scatters) goes between ranks straight.
#include <algorithm>
#include <cstring>

#include "collectives/cpu_backend.h"

namespace towline::collectives {

Status CpuBackend::run_between_hosts(Call& call) {
  if (all_ == nullptr) {
    std::vector<int> everyone(static_cast<size_t>(size_));
    for (int rank = 0; rank < size_; ++rank) everyone[static_cast<size_t>(rank)] = rank;
    all_ = std::make_unique<TcpGroup>(*mesh_, rank_, std::move(everyone));
    std::vector<int> leaders;
    for (const std::vector<int>& host : hosts_) leaders.push_back(host.front());
    if (group_->index() == 0)
      leaders_ = std::make_unique<TcpGroup>(*mesh_, static_cast<int>(my_host_), std::move(leaders));
  }
  const bool alone = hosts_.size() == static_cast<size_t>(size_);
  switch (call.op) {
    case TOWLINE_OP_BARRIER:
      return alone ? all_->barrier(call) : barrier_between_hosts(call);
    case TOWLINE_OP_ALL_REDUCE:
      return alone ? all_->all_reduce(call) : all_reduce_between_hosts(call);
    case TOWLINE_OP_REDUCE:
      return all_->reduce(call);
    case TOWLINE_OP_BROADCAST:
      return alone ? all_->broadcast(call) : broadcast_between_hosts(call);
    case TOWLINE_OP_ALL_GATHER:
    case TOWLINE_OP_ALL_GATHER_V:
      return alone ? all_->all_gather(call) : all_gather_between_hosts(call);
    case TOWLINE_OP_REDUCE_SCATTER:
    case TOWLINE_OP_REDUCE_SCATTER_V:
      return alone ? all_->reduce_scatter(call) : reduce_scatter_between_hosts(call);
    case TOWLINE_OP_GATHER:
      return all_->gather(call);
    case TOWLINE_OP_SCATTER:
      return all_->scatter(call);
    case TOWLINE_OP_ALL_TO_ALL:
    case TOWLINE_OP_ALL_TO_ALL_V:
      return all_->all_to_all(call);
    default:
      return breaker_.raise(Status::kInternal, "an operation that is none");
  }
}

Status CpuBackend::barrier_between_hosts(Call& call) {
  if (const Status status = group_->barrier(call); is_error(status)) return status;
  if (leaders_ != nullptr) {
    if (const Status status = leaders_->barrier(call); is_error(status)) return status;
  }
  call.header.step = 1;
  return group_->barrier(call);
}

// Sums of hosts, then the sum of those. AVG divides at the end.
Status CpuBackend::all_reduce_between_hosts(Call& call) {
  Call part = call;
  part.root = 0;
  if (call.reduction == TOWLINE_AVG) part.reduction = TOWLINE_SUM;
  if (const Status status = group_->reduce(part); is_error(status)) return status;
  if (leaders_ != nullptr) {
    part.input = call.output;
    part.reduction = call.reduction;
    if (const Status status = leaders_->all_reduce(part); is_error(status)) return status;
  }
  part.header.step = 1;
  part.input = part.output = call.output;
  return group_->broadcast(part);
}

Status CpuBackend::broadcast_between_hosts(Call& call) {
  const auto host_of = [&](int rank) {
    for (size_t host = 0; host < hosts_.size(); ++host)
      if (std::ranges::find(hosts_[host], rank) != hosts_[host].end()) return host;
    return size_t{0};
  };
  const size_t root_host = host_of(call.root);
  Call part = call;
  if (part.output == nullptr) part.output = const_cast<uint8_t*>(call.input);
  // On the root's host everyone has it first, the leader too.
  if (my_host_ == root_host) {
    const std::vector<int>& members = hosts_[my_host_];
    part.root = static_cast<int>(std::ranges::find(members, call.root) - members.begin());
    if (const Status status = group_->broadcast(part); is_error(status)) return status;
  }
  if (leaders_ != nullptr) {
    part.root = static_cast<int>(root_host);
    part.input = part.output;
    if (const Status status = leaders_->broadcast(part); is_error(status)) return status;
  }
  if (my_host_ == root_host) return Status::kOk;
  part.root = 0;
  part.input = part.output;
  part.header.step = 1;
  return group_->broadcast(part);
}

// Leaders collect their host's parts in a row, exchange rows, and spread them all.
Status CpuBackend::all_gather_between_hosts(Call& call) {
  const std::vector<int>& members = hosts_[my_host_];
  std::vector<uint64_t> row_bytes(hosts_.size());
  uint64_t total = 0;
  for (size_t host = 0; host < hosts_.size(); ++host) {
    for (const int rank : hosts_[host]) row_bytes[host] += call.out.bytes[static_cast<size_t>(rank)];
    total += row_bytes[host];
  }
  scratch_.resize(total);
  Call local = call;
  local.out.resize(members.size());
  uint64_t at = 0;
  for (size_t host = 0; host < my_host_; ++host) at += row_bytes[host];
  uint8_t* const row = scratch_.data() + at;
  for (size_t i = 0; i < members.size(); ++i) {
    local.out.at[i] = scratch_.data() + at;
    local.out.bytes[i] = call.out.bytes[static_cast<size_t>(members[i])];
    at += local.out.bytes[i];
  }
  if (const Status status = group_->all_gather(local); is_error(status)) return status;
  if (leaders_ != nullptr) {
    local.out.resize(hosts_.size());
    at = 0;
    for (size_t host = 0; host < hosts_.size(); ++host) {
      local.out.at[host] = scratch_.data() + at;
      local.out.bytes[host] = row_bytes[host];
      at += row_bytes[host];
    }
    local.input = row;
    if (const Status status = leaders_->all_gather(local); is_error(status)) return status;
  }
  local.root = 0;
  local.bytes = total;
  local.input = local.output = scratch_.data();
  local.header.step = 1;
  if (const Status status = group_->broadcast(local); is_error(status)) return status;
  at = 0;
  for (const std::vector<int>& host : hosts_) {
    for (const int rank : host) {
      const auto i = static_cast<size_t>(rank);
      if (call.out.bytes[i] != 0) std::memcpy(call.out.at[i], scratch_.data() + at, call.out.bytes[i]);
      at += call.out.bytes[i];
    }
  }
  return Status::kOk;
}

// A host's inputs are summed in the order of hosts; leaders exchange their hosts' parts and give each rank
// its.
Status CpuBackend::reduce_scatter_between_hosts(Call& call) {
  const std::vector<int>& members = hosts_[my_host_];
  uint64_t total = 0;
  for (const uint64_t bytes : call.in.bytes) total += bytes;
  scratch_.resize(2 * total);
  uint64_t at = 0;
  Parts rows;
  rows.resize(hosts_.size());
  for (size_t host = 0; host < hosts_.size(); ++host) {
    rows.at[host] = scratch_.data() + total + at;
    rows.bytes[host] = 0;
    for (const int rank : hosts_[host]) {
      const auto i = static_cast<size_t>(rank);
      if (call.in.bytes[i] != 0) std::memcpy(scratch_.data() + at, call.in.at[i], call.in.bytes[i]);
      at += call.in.bytes[i];
      rows.bytes[host] += call.in.bytes[i];
    }
  }
  Call part = call;
  part.root = 0;
  part.bytes = total;
  part.input = scratch_.data();
  part.output = scratch_.data() + total;
  if (call.reduction == TOWLINE_AVG) part.reduction = TOWLINE_SUM;
  if (const Status status = group_->reduce(part); is_error(status)) return status;
  uint8_t* const mine = scratch_.data();  // the host's row
  if (leaders_ != nullptr) {
    part.reduction = call.reduction;
    part.in = rows;
    part.output = mine;
    if (const Status status = leaders_->reduce_scatter(part); is_error(status)) return status;
  }
  // Parts may differ in size, so everyone gets the row and takes its own.
  part.bytes = rows.bytes[my_host_];
  part.input = part.output = mine;
  part.header.step = 1;
  if (const Status status = group_->broadcast(part); is_error(status)) return status;
  at = 0;
  for (const int rank : members) {
    const auto i = static_cast<size_t>(rank);
    if (rank == rank_ && call.in.bytes[i] != 0) std::memcpy(call.output, mine + at, call.in.bytes[i]);
    at += call.in.bytes[i];
  }
  return Status::kOk;
}

}  // namespace towline::collectives
