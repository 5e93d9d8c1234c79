// Operations over several hosts. If every host has one rank, they are those of TcpGroup. Otherwise ranks of
// one host work together through shared memory, and each byte crosses between two hosts once.
//
// Small data: a host's *leader* (its first rank; on the root's host the root) communicates for all its ranks.
// Large data: all ranks communicate. A *column* is the set of ranks with the same index on their hosts. Each
// rank of a host reduces or holds the part of its column; columns use the network in parallel, each over its
// own connections; and hosts put the parts together. So neither one rank nor one connection is a bottleneck.
// If hosts have different numbers of ranks, the smallest host determines the number of columns.
//
// Large data is moved in chunks that stay in the caches from one stage to the next. All ranks cut in the same
// way: chunks depend only on the header.
#include <algorithm>
#include <cstring>

#include "collectives/calls/types.h"
#include "collectives/copy.h"
#include "collectives/cpu_backend.h"

namespace towline::collectives {
namespace {

constexpr uint64_t kBroadcastBytes = 1 << 20;  // a chunk of a broadcast
constexpr uint64_t kStreamBytes = 8 << 20;     // from this size on, all_to_all stores past the caches

uint64_t sum(const std::vector<uint64_t>& values) {
  uint64_t total = 0;
  for (const uint64_t value : values) total += value;
  return total;
}

}  // namespace

void CpuBackend::make_groups() {
  std::vector<int> everyone(static_cast<size_t>(size_));
  host_of_.resize(everyone.size());
  for (int rank = 0; rank < size_; ++rank) everyone[static_cast<size_t>(rank)] = rank;
  columns_ = hosts_.front().size();
  even_ = true;
  for (size_t host = 0; host < hosts_.size(); ++host) {
    for (const int rank : hosts_[host]) host_of_[static_cast<size_t>(rank)] = host;
    even_ = even_ && hosts_[host].size() == columns_;
    columns_ = std::min(columns_, hosts_[host].size());
  }
  all_ = std::make_unique<TcpGroup>(*mesh_, rank_, std::move(everyone), arrivals_);
  leaders_.resize(static_cast<size_t>(size_) + 1);
  const auto mine = static_cast<size_t>(group_->index());
  if (mine >= columns_) return;
  std::vector<int> column;
  for (const std::vector<int>& host : hosts_) column.push_back(host[mine]);
  column_ = std::make_unique<TcpGroup>(*mesh_, static_cast<int>(my_host_), std::move(column), arrivals_);
}

// This host's leader, as an index of the group. Root < 0: no root.
int CpuBackend::leader_of_host(int root) const {
  if (root < 0 || host_of_[static_cast<size_t>(root)] != my_host_) return 0;
  const std::vector<int>& members = hosts_[my_host_];
  return static_cast<int>(std::ranges::find(members, root) - members.begin());
}

// The group of leaders, by host number, if this rank is one of them; else null.
TcpGroup* CpuBackend::leaders(int root) {
  if (group_->index() != leader_of_host(root)) return nullptr;
  std::unique_ptr<TcpGroup>& group = leaders_[static_cast<size_t>(root + 1)];
  if (group == nullptr) {
    std::vector<int> ranks;
    for (const std::vector<int>& host : hosts_) ranks.push_back(host.front());
    if (root >= 0) ranks[host_of_[static_cast<size_t>(root)]] = root;
    group = std::make_unique<TcpGroup>(*mesh_, static_cast<int>(my_host_), std::move(ranks), arrivals_);
  }
  return group.get();
}

// A host's leader depends on the root. So hosts that disagree on the root might wait for ranks that send
// nothing. To detect this, the first ranks of the hosts compare their headers.
Status CpuBackend::compare_hosts(const Call& call) {
  TcpGroup* const group = leaders(-1);
  return group != nullptr ? group->compare(call) : Status::kOk;
}

bool CpuBackend::first_of_host(int rank) const {
  return hosts_[host_of_[static_cast<size_t>(rank)]].front() == rank;
}

Status CpuBackend::run_between_hosts(Call& call) {
  if (all_ == nullptr) make_groups();
  const bool alone = hosts_.size() == static_cast<size_t>(size_);
  if (!alone && has_root(call.op) && !first_of_host(call.root)) {
    if (const Status status = compare_hosts(call); is_error(status)) return status;
    call.compared = true;
  }
  switch (call.op) {
    case TOWLINE_COLLECTIVE_BARRIER:
      return alone ? all_->barrier(call) : barrier_between_hosts(call);
    case TOWLINE_COLLECTIVE_ALL_REDUCE:
      return alone ? all_->all_reduce(call) : all_reduce_between_hosts(call);
    case TOWLINE_COLLECTIVE_REDUCE:
      return alone ? all_->reduce(call) : reduce_between_hosts(call);
    case TOWLINE_COLLECTIVE_BROADCAST:
      return alone ? all_->broadcast(call) : broadcast_between_hosts(call);
    case TOWLINE_COLLECTIVE_ALL_GATHER:
    case TOWLINE_COLLECTIVE_ALL_GATHER_V:
      return alone ? all_->all_gather(call) : all_gather_between_hosts(call);
    case TOWLINE_COLLECTIVE_REDUCE_SCATTER:
    case TOWLINE_COLLECTIVE_REDUCE_SCATTER_V:
      return alone ? all_->reduce_scatter(call) : reduce_scatter_between_hosts(call);
    case TOWLINE_COLLECTIVE_GATHER:
      return alone ? all_->gather(call) : gather_between_hosts(call);
    case TOWLINE_COLLECTIVE_SCATTER:
      return alone ? all_->scatter(call) : scatter_between_hosts(call);
    case TOWLINE_COLLECTIVE_ALL_TO_ALL:
    case TOWLINE_COLLECTIVE_ALL_TO_ALL_V:
      return alone ? all_->all_to_all(call) : all_to_all_between_hosts(call);
    default:
      return breaker_.raise(Status::kInternal, "the operation is unknown");
  }
}

Status CpuBackend::barrier_between_hosts(Call& call) {
  if (const Status status = group_->barrier(call); is_error(status)) return status;
  if (TcpGroup* group = leaders(-1)) {
    if (const Status status = group->barrier(call); is_error(status)) return status;
  }
  call.header.step = 1;
  return group_->barrier(call);
}

// ---- all_reduce. A sum on each host, then the sum of those sums. AVG divides at the end.

Status CpuBackend::all_reduce_between_hosts(Call& call) {
  if (call.bytes <= settings_.leader_bytes || columns_ == 1) return all_reduce_by_leaders(call);
  const uint64_t bytes = call.bytes;
  const uint64_t chunk = settings_.chunk_bytes / call.element * call.element;
  for (uint64_t begin = 0; begin < bytes; begin += chunk) {
    Call part = call;
    part.bytes = std::min(chunk, bytes - begin);
    part.input = call.input + begin;
    part.output = call.output + begin;
    if (const Status status = all_reduce_by_columns(part); is_error(status)) return status;
  }
  return Status::kOk;
}

Status CpuBackend::all_reduce_by_leaders(const Call& call) {
  Call part = call;
  part.root = 0;
  if (call.reduction == TOWLINE_REDUCE_AVG) part.reduction = TOWLINE_REDUCE_SUM;
  if (const Status status = group_->reduce(part); is_error(status)) return status;
  if (TcpGroup* group = leaders(-1)) {
    part.input = call.output;
    part.reduction = call.reduction;
    if (const Status status = group->all_reduce(part); is_error(status)) return status;
  }
  part.header.step = 1;
  part.input = part.output = call.output;
  return group_->broadcast(part);
}

Status CpuBackend::all_reduce_by_columns(const Call& call) {
  const auto mine = static_cast<size_t>(group_->index());
  // A slice for each column, whole elements in whole lines.
  const uint64_t elements = call.bytes / call.element;
  const uint64_t line = 64 / call.element;
  const uint64_t share = ((elements + columns_ - 1) / columns_ + line - 1) / line * line * call.element;
  Call part = call;
  part.in.resize(hosts_[my_host_].size());
  part.out.resize(hosts_[my_host_].size());
  for (size_t i = 0; i < part.in.at.size(); ++i) {
    const uint64_t begin = std::min(i < columns_ ? i * share : call.bytes, call.bytes);
    part.in.at[i] = const_cast<uint8_t*>(call.input) + begin;
    part.out.at[i] = call.output + begin;
    part.in.bytes[i] = part.out.bytes[i] = i < columns_ ? std::min(share, call.bytes - begin) : 0;
  }
  part.output = part.out.at[mine];
  if (call.reduction == TOWLINE_REDUCE_AVG) part.reduction = TOWLINE_REDUCE_SUM;
  if (const Status status = group_->reduce_scatter(part); is_error(status)) return status;
  if (column_ != nullptr) {
    Call across = call;
    across.input = across.output = part.out.at[mine];
    across.bytes = part.out.bytes[mine];
    if (const Status status = column_->all_reduce(across); is_error(status)) return status;
  }
  part.header.step = 1;
  part.input = part.out.at[mine];
  return group_->all_gather(part);
}

// ---- reduce, broadcast: the root is its host's leader

Status CpuBackend::reduce_between_hosts(Call& call) {
  TcpGroup* const group = leaders(call.root);
  const uint64_t chunk = settings_.chunk_bytes / call.element * call.element;
  // On leaders of other hosts: the data for the root.
  if (group != nullptr && rank_ != call.root) scratch_.resize(std::min(chunk, call.bytes));
  for (uint64_t begin = 0; begin == 0 || begin < call.bytes; begin += chunk) {
    Call part = call;
    part.bytes = std::min(chunk, call.bytes - begin);
    part.input = call.input + begin;
    part.output = rank_ == call.root ? call.output + begin : scratch_.data();
    part.root = leader_of_host(call.root);
    if (call.reduction == TOWLINE_REDUCE_AVG) part.reduction = TOWLINE_REDUCE_SUM;
    if (const Status status = group_->reduce(part); is_error(status)) return status;
    if (group == nullptr) continue;
    part.input = part.output;
    part.reduction = call.reduction;
    part.root = static_cast<int>(host_of_[static_cast<size_t>(call.root)]);
    if (const Status status = group->reduce(part); is_error(status)) return status;
  }
  return Status::kOk;
}

Status CpuBackend::broadcast_between_hosts(Call& call) {
  TcpGroup* const group = leaders(call.root);
  if (call.output == nullptr) call.output = const_cast<uint8_t*>(call.input);
  if (call.bytes != 0 && rank_ == call.root) copy(call.output, call.input, call.bytes);
  // Small enough that a host's ranks share one piece while the next crosses.
  const uint64_t chunk = std::min(settings_.chunk_bytes, kBroadcastBytes);
  for (uint64_t begin = 0; begin == 0 || begin < call.bytes; begin += chunk) {
    Call part = call;
    part.bytes = std::min(chunk, call.bytes - begin);
    part.input = part.output = call.output + begin;
    part.compared = call.compared || begin != 0;
    if (group != nullptr) {
      part.root = static_cast<int>(host_of_[static_cast<size_t>(call.root)]);
      if (const Status status = group->broadcast(part); is_error(status)) return status;
    }
    part.root = leader_of_host(call.root);
    if (const Status status = group_->broadcast(part); is_error(status)) return status;
  }
  return Status::kOk;
}

// ---- all_gather

Status CpuBackend::all_gather_between_hosts(Call& call) {
  if (sum(call.out.bytes) <= settings_.leader_bytes || !even_) return all_gather_by_leaders(call);
  // Columns exchange their parts, each of which lands in its final place. Then each rank of this host holds
  // one part of every host, and gives these to the other ranks of this host.
  const auto mine = static_cast<size_t>(group_->index());
  Call part = call;
  part.out.resize(hosts_.size());
  const auto take = [&](size_t to, int rank) {
    part.out.at[to] = call.out.at[static_cast<size_t>(rank)];
    part.out.bytes[to] = call.out.bytes[static_cast<size_t>(rank)];
  };
  for (size_t host = 0; host < hosts_.size(); ++host) take(host, hosts_[host][mine]);
  if (const Status status = column_->all_gather(part); is_error(status)) return status;
  part.out.resize(columns_);
  for (const std::vector<int>& host : hosts_) {
    for (size_t i = 0; i < columns_; ++i) take(i, host[i]);
    part.input = part.out.at[mine];
    if (const Status status = group_->all_gather(part); is_error(status)) return status;
    ++part.header.step;
  }
  return Status::kOk;
}

// Leaders collect their host's parts in a row, exchange rows, and spread them all.
Status CpuBackend::all_gather_by_leaders(const Call& call) {
  const std::vector<int>& members = hosts_[my_host_];
  std::vector<uint64_t> row_bytes(hosts_.size());
  for (size_t host = 0; host < hosts_.size(); ++host)
    for (const int rank : hosts_[host]) row_bytes[host] += call.out.bytes[static_cast<size_t>(rank)];
  const uint64_t total = sum(row_bytes);
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
  if (TcpGroup* group = leaders(-1)) {
    local.out.resize(hosts_.size());
    at = 0;
    for (size_t host = 0; host < hosts_.size(); ++host) {
      local.out.at[host] = scratch_.data() + at;
      local.out.bytes[host] = row_bytes[host];
      at += row_bytes[host];
    }
    local.input = row;
    if (const Status status = group->all_gather(local); is_error(status)) return status;
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
      copy(call.out.at[i], scratch_.data() + at, call.out.bytes[i]);
      at += call.out.bytes[i];
    }
  }
  return Status::kOk;
}

// ---- reduce_scatter

Status CpuBackend::reduce_scatter_between_hosts(Call& call) {
  if (sum(call.in.bytes) <= settings_.leader_bytes || !even_) return reduce_scatter_by_leaders(call);
  // On each host, each rank reduces the part of its column for every host; columns then reduce those.
  const auto mine = static_cast<size_t>(group_->index());
  Parts column;
  column.resize(hosts_.size());
  for (size_t host = 0; host < hosts_.size(); ++host)
    column.bytes[host] = call.in.bytes[static_cast<size_t>(hosts_[host][mine])];
  scratch_.resize(sum(column.bytes));
  uint64_t at = 0;
  Call part = call;
  if (call.reduction == TOWLINE_REDUCE_AVG) part.reduction = TOWLINE_REDUCE_SUM;
  part.in.resize(columns_);
  for (size_t host = 0; host < hosts_.size(); ++host) {
    for (size_t i = 0; i < columns_; ++i) {
      part.in.at[i] = call.in.at[static_cast<size_t>(hosts_[host][i])];
      part.in.bytes[i] = call.in.bytes[static_cast<size_t>(hosts_[host][i])];
    }
    part.output = column.at[host] = scratch_.data() + at;
    at += column.bytes[host];
    if (const Status status = group_->reduce_scatter(part); is_error(status)) return status;
    ++part.header.step;
  }
  part.in = std::move(column);
  part.header = call.header;
  part.reduction = call.reduction;
  part.output = call.output;
  return column_->reduce_scatter(part);
}

// A host's inputs are summed, with parts ordered by host; leaders exchange their hosts' parts and give each
// rank its own.
Status CpuBackend::reduce_scatter_by_leaders(const Call& call) {
  const std::vector<int>& members = hosts_[my_host_];
  const uint64_t total = sum(call.in.bytes);
  scratch_.resize(2 * total);
  uint64_t at = 0;
  Parts rows;
  rows.resize(hosts_.size());
  for (size_t host = 0; host < hosts_.size(); ++host) {
    rows.at[host] = scratch_.data() + total + at;
    rows.bytes[host] = 0;
    for (const int rank : hosts_[host]) {
      const auto i = static_cast<size_t>(rank);
      copy(scratch_.data() + at, call.in.at[i], call.in.bytes[i]);
      at += call.in.bytes[i];
      rows.bytes[host] += call.in.bytes[i];
    }
  }
  Call part = call;
  part.root = 0;
  part.bytes = total;
  part.input = scratch_.data();
  part.output = scratch_.data() + total;
  if (call.reduction == TOWLINE_REDUCE_AVG) part.reduction = TOWLINE_REDUCE_SUM;
  if (const Status status = group_->reduce(part); is_error(status)) return status;
  uint8_t* const mine = scratch_.data();  // the host's row
  if (TcpGroup* group = leaders(-1)) {
    part.reduction = call.reduction;
    part.in = rows;
    part.output = mine;
    if (const Status status = group->reduce_scatter(part); is_error(status)) return status;
  }
  // Parts may differ in size, so every rank gets the row and takes its own part.
  part.bytes = rows.bytes[my_host_];
  part.input = part.output = mine;
  part.header.step = 1;
  if (const Status status = group_->broadcast(part); is_error(status)) return status;
  at = 0;
  for (const int rank : members) {
    const auto i = static_cast<size_t>(rank);
    if (rank == rank_) copy(call.output, mine + at, call.in.bytes[i]);
    at += call.in.bytes[i];
  }
  return Status::kOk;
}

// ---- gather, scatter. Small parts go between a host's leader and the root, all of a host in a row. Large
// ones go directly between their rank and the root.

Status CpuBackend::gather_between_hosts(Call& call) {
  if (static_cast<uint64_t>(size_) * call.bytes > settings_.leader_bytes) return straight_with_root(call);
  TcpGroup* const group = leaders(call.root);
  Rows rows;
  if (group != nullptr) rows = rows_of(call.bytes);
  Call part = call;
  part.root = leader_of_host(call.root);
  part.out = rows.here;
  if (const Status status = group_->gather(part); is_error(status)) return status;
  if (group == nullptr) return Status::kOk;
  part.root = static_cast<int>(host_of_[static_cast<size_t>(call.root)]);
  part.out = rows.hosts;
  part.input = rows.hosts.at[my_host_];
  part.bytes = rows.hosts.bytes[my_host_];
  if (const Status status = group->gather(part); is_error(status)) return status;
  for (size_t rank = 0; rank_ == call.root && rank < rows.ranks.size(); ++rank)
    copy(call.out.at[rank], rows.ranks[rank], call.bytes);
  return Status::kOk;
}

Status CpuBackend::scatter_between_hosts(Call& call) {
  if (static_cast<uint64_t>(size_) * call.bytes > settings_.leader_bytes) return straight_with_root(call);
  Rows rows;
  Call part = call;
  if (TcpGroup* const group = leaders(call.root)) {
    rows = rows_of(call.bytes);
    for (size_t rank = 0; rank_ == call.root && rank < rows.ranks.size(); ++rank)
      copy(rows.ranks[rank], call.in.at[rank], call.bytes);
    part.root = static_cast<int>(host_of_[static_cast<size_t>(call.root)]);
    part.in = rows.hosts;
    part.output = rows.hosts.at[my_host_];
    part.bytes = rows.hosts.bytes[my_host_];
    if (const Status status = group->scatter(part); is_error(status)) return status;
  }
  part = call;
  part.root = leader_of_host(call.root);
  part.in = rows.here;
  return group_->scatter(part);
}

// Scratch space for a part of every rank, those of each host in a row.
CpuBackend::Rows CpuBackend::rows_of(uint64_t bytes) {
  Rows rows;
  rows.ranks.resize(static_cast<size_t>(size_));
  rows.hosts.resize(hosts_.size());
  rows.here.resize(hosts_[my_host_].size());
  scratch_.resize(rows.ranks.size() * bytes);
  uint8_t* at = scratch_.data();
  for (size_t host = 0; host < hosts_.size(); ++host) {
    rows.hosts.at[host] = at;
    rows.hosts.bytes[host] = hosts_[host].size() * bytes;
    for (size_t i = 0; i < hosts_[host].size(); ++i, at += bytes) {
      rows.ranks[static_cast<size_t>(hosts_[host][i])] = at;
      if (host != my_host_) continue;
      rows.here.at[i] = at;
      rows.here.bytes[i] = bytes;
    }
  }
  return rows;
}

// Ranks of the root's host use shared memory. The ranks of another host compare their headers among
// themselves, as leaders do between hosts, so that no rank waits for a root that disagrees.
Status CpuBackend::straight_with_root(const Call& call) {
  const std::vector<int>& members = hosts_[my_host_];
  const bool gathers = call.op == TOWLINE_COLLECTIVE_GATHER;
  const bool with_root = host_of_[static_cast<size_t>(call.root)] == my_host_;
  const auto among_us = [&] {
    Call part = call;
    part.root = leader_of_host(call.root);
    Parts& local = gathers ? part.out : part.in;
    const Parts& all = gathers ? call.out : call.in;
    local.resize(members.size());
    for (size_t i = 0; rank_ == call.root && i < members.size(); ++i) {
      local.at[i] = all.at[static_cast<size_t>(members[i])];
      local.bytes[i] = call.bytes;
    }
    if (!with_root) return group_->barrier(part);
    return gathers ? group_->gather(part) : group_->scatter(part);
  };
  if (gathers || !with_root) {
    if (const Status status = among_us(); is_error(status)) return status;
  }
  if (const Status status = compare_hosts(call); is_error(status)) return status;
  if (!with_root || rank_ == call.root) {
    Call across = call;
    across.compared = true;
    const Status status = gathers ? all_->gather(across, members) : all_->scatter(across, members);
    if (is_error(status)) return status;
  }
  // The parts of other hosts come first, since they take longer.
  return !gathers && with_root ? among_us() : Status::kOk;
}

// ---- all_to_all: through shared memory within a host, directly between ranks of different hosts

Status CpuBackend::all_to_all_between_hosts(Call& call) {
  const std::vector<int>& members = hosts_[my_host_];
  Call local = call;
  // The traffic through the kernel evicts it from the caches anyway.
  local.streaming = sum(call.out.bytes) >= kStreamBytes;
  local.in.resize(members.size());
  local.out.resize(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    const auto rank = static_cast<size_t>(members[i]);
    local.in.at[i] = call.in.at[rank];
    local.in.bytes[i] = call.in.bytes[rank];
    local.out.at[i] = call.out.at[rank];
    local.out.bytes[i] = call.out.bytes[rank];
  }
  const Status status =
      call.op == TOWLINE_COLLECTIVE_ALL_TO_ALL_V ? group_->all_to_all_v(local) : group_->all_to_all(local);
  return is_error(status) ? status : all_->all_to_all(call, members);
}

}  // namespace towline::collectives
