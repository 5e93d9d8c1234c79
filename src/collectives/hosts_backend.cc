#include "collectives/hosts_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/config/config.h"
#include "base/error.h"
#include "base/per_thread.h"
#include "collectives/calls/types.h"
#include "collectives/forming.h"
#include "collectives/host_relay.h"
#include "collectives/reduce.h"
#include "rendezvous/exchange.h"

namespace towline::collectives {
namespace {

constexpr uint64_t kLeastStaging = 64 << 10;
constexpr size_t kPeersAtOnce = 8;    // of other hosts, whose strands are made with the communicator
constexpr uint64_t kStrandShare = 4;  // a strand of messages has so much less staging than operations have

// The error message of the inside backend for the current call, on its thread.
thread_local constinit ThreadText inside_text;

}  // namespace

std::vector<std::vector<int>> find_hosts(rendezvous::Store& store, int rank, int size,
                                         const std::string& label, Deadline deadline) {
  rendezvous::RankInfo mine = rendezvous::this_rank();
  mine.label = label;
  std::vector<rendezvous::RankInfo> infos;
  const auto all = rendezvous::exchange(store, "gpus", rank, size, rendezvous::encode(mine), deadline);
  for (int other = 0; other < size; ++other)
    infos.push_back(rendezvous::decode(all[static_cast<size_t>(other)], other));
  return rendezvous::hosts_of(infos, true);
}

HostsBackend::HostsBackend(const towline_collective_open_args& args,
                           const towline_collective_table_v1_t& inside, std::vector<std::vector<int>> hosts)
    : host_(args.host), table_(inside), rank_(args.rank), size_(args.size) {
  layout_.hosts = std::move(hosts);
  layout_.host_of.resize(static_cast<size_t>(size_));
  layout_.index_of.resize(static_cast<size_t>(size_));
  layout_.columns = layout_.hosts.front().size();
  for (size_t host = 0; host < layout_.hosts.size(); ++host) {
    const std::vector<int>& ranks = layout_.hosts[host];
    for (size_t i = 0; i < ranks.size(); ++i) {
      layout_.host_of[static_cast<size_t>(ranks[i])] = host;
      layout_.index_of[static_cast<size_t>(ranks[i])] = i;
    }
    layout_.even = layout_.even && ranks.size() == layout_.columns;
    layout_.columns = std::min(layout_.columns, ranks.size());
  }
  layout_.mine = layout_.host_of[static_cast<size_t>(rank_)];
  layout_.index = layout_.index_of[static_cast<size_t>(rank_)];
  prefix_ = fmt::format("host/{}/", layout_.mine);

  cpu_host_ = relay_host(*this);
  // The mesh has agreed on the reason: GPUs stop, and the application is told.
  cpu_host_.broken = [](void* context, int32_t status, const char* text) {
    auto& self = *static_cast<HostsBackend*>(context);
    self.stop_inside(status, text);
    self.host_->broken(self.host_->context, status, text);
  };
  towline_collective_open_args cpu_args = args;
  cpu_args.host = &cpu_host_;
  cpu_args.flags |= TOWLINE_COMMUNICATOR_NO_SHARED_MEMORY;
  cpu_ = std::make_unique<CpuBackend>(cpu_args);
  std::vector<int> column;
  for (const std::vector<int>& ranks : layout_.hosts)
    if (layout_.index < layout_.columns) column.push_back(ranks[layout_.index]);
  if (!column.empty())
    column_ = std::make_unique<TcpGroup>(cpu_->mesh(), static_cast<int>(layout_.mine), std::move(column),
                                         cpu_->arrivals());

  std::string problem;
  Status status = Status::kOk;
  try {
    open_inside(args);
  } catch (const Error& error) {
    problem = error.message();
    status = error.code();
    refuse_to_form(*host_, rank_, error);              // ranks of this host may wait for it inside
    if (status == Status::kPeerLost) problem.clear();  // another rank's reason, and that one tells it
  }
  // Every rank learns of it alike.
  HostStore store(*host_);
  const auto problems = rendezvous::exchange(
      store, "inside", rank_, size_, {reinterpret_cast<const uint8_t*>(problem.data()), problem.size()},
      Deadline::at(args.deadline_ns));
  if (is_error(status) && !problem.empty()) fail(status, "{}", problem);
  for (int other = 0; other < size_; ++other) {
    const auto& text = problems[static_cast<size_t>(other)];
    if (text.empty()) continue;
    close_inside();
    fail(Status::kPeerLost, "rank {} failed: {}", other, std::string(text.begin(), text.end()));
  }
  if (is_error(status)) fail(status, "a rank of this host failed");
}

void HostsBackend::open_inside(const towline_collective_open_args& args) {
  inside_host_ = cpu_host_;
  inside_host_.fail = [](void*, const char* text) { inside_text.set(text); };
  // Ranks of the other hosts are told, and agree on one reason.
  inside_host_.broken = [](void* context, int32_t status, const char* text) {
    static_cast<HostsBackend*>(context)->cpu_->abort(Status{status}, text);
  };
  prefix_keys<HostsBackend>(inside_host_);
  towline_collective_open_args mine = args;
  mine.host = &inside_host_;
  mine.rank = static_cast<int32_t>(layout_.index);
  mine.size = static_cast<int32_t>(layout_.here().size());
  mine.called = layout_.here().data();
  towline_collective_backend* made = nullptr;
  inside_text.clear();
  check_inside(table_.open(&mine, &made));
  const std::string staging = host_->config(host_->context, "tuning.collectives.gpu_staging_bytes", "8MiB");
  const auto bytes = parse_bytes(staging);
  void* memory = nullptr;
  try {
    if (!bytes || *bytes < kLeastStaging * (layout_.hosts.size() + 1))
      fail(Status::kInvalidArgument,
           "tuning.collectives.gpu_staging_bytes = \"{}\": expected a size, at least {} for {} hosts",
           staging, kLeastStaging * (layout_.hosts.size() + 1), layout_.hosts.size());
    layout_.half = *bytes / 2 / 4096 * 4096;
    check_inside(table_.hops_open(
        made, 2 * layout_.half,
        [](void* context, const uint64_t* words) -> int32_t {
          Hop hop;
          std::memcpy(static_cast<void*>(&hop), words, sizeof hop);
          return static_cast<int32_t>(static_cast<HostsBackend*>(context)->run(hop));
        },
        this, &memory));
    layout_.staging = static_cast<uint8_t*>(memory);
    messages_ = std::make_unique<HostsMessages>(*cpu_, table_, *bytes / kStrandShare);
    open_strands(made);
  } catch (const Error&) {
    table_.close(made);
    throw;
  }
  windows_ = std::make_unique<HostsWindows>(*cpu_, table_, *bytes / kStrandShare);
  const std::lock_guard lock(inside_mutex_);
  inside_ = made;
}

void HostsBackend::open_strands(towline_collective_backend* inside) {
  std::vector<int> elsewhere;
  for (int rank = 0; rank < size_; ++rank)
    if (index_here(rank) < 0) elsewhere.push_back(rank);
  if (elsewhere.size() > kPeersAtOnce || !messages_->possible()) return;
  messages_->open(inside, elsewhere, [this](int32_t status) { check_inside(status); });
}

HostsBackend::~HostsBackend() { close_inside(); }

void HostsBackend::close_inside() {
  if (messages_ != nullptr) messages_->close();
  if (windows_ != nullptr) windows_->close();
  towline_collective_backend* closing = nullptr;
  {
    const std::lock_guard lock(inside_mutex_);
    closing = std::exchange(inside_, nullptr);
  }
  if (closing != nullptr) table_.close(closing);
}

void HostsBackend::stop_inside(int32_t status, const char* text) {
  const std::lock_guard lock(inside_mutex_);
  if (inside_ != nullptr) table_.abort(inside_, status, text);
}

void HostsBackend::check_inside(int32_t status) const {
  if (status >= 0) return;
  if (cpu_->breaker().broken()) fail(cpu_->breaker().status(), "{}", cpu_->breaker().breakage().text);
  fail(Status{status}, "{}", inside_text.empty() ? status_text(Status{status}) : inside_text.c_str());
}

// ---- Operations

void HostsBackend::issue(const towline_collective_t& call, uint64_t number, uint64_t timeout_ns, void* stream,
                         towline_collective_message** message) {
  if (breaker().broken()) fail(breaker().status(), "{}", breaker().breakage().text);
  inside_text.clear();
  const auto put = [&](const std::vector<towline_collective_step_t>& steps) {
    check_inside(
        table_.issue_steps(inside_, steps.data(), steps.size(), number, timeout_ns, stream, message));
  };
  if (to_another_host(call))
    return put(messages_->cut(inside_, call, timeout_ns, [this](int32_t status) { check_inside(status); }));
  if (call.op == TOWLINE_COLLECTIVE_SEND || call.op == TOWLINE_COLLECTIVE_RECV) {
    const towline_collective_t here = inside_message(call);
    return check_inside(message == nullptr
                            ? table_.issue(inside_, &here, number, timeout_ns, stream)
                            : table_.issue_beside(inside_, &here, number, timeout_ns, stream, message));
  }
  put(steps_.cut(layout_, call, number, timeout_ns));
}

void HostsBackend::issue_norm(const towline_collective_norm_t& norm, uint64_t number, uint64_t timeout_ns,
                              void* stream) {
  if (breaker().broken()) fail(breaker().status(), "{}", breaker().breakage().text);
  inside_text.clear();
  const auto& steps = steps_.cut_norm(layout_, norm, number, timeout_ns);
  check_inside(table_.issue_steps(inside_, steps.data(), steps.size(), number, timeout_ns, stream, nullptr));
}

Status HostsBackend::perform(const towline_collective_t& call, uint64_t number, Deadline deadline) {
  if (breaker().broken()) return breaker().status();
  inside_text.clear();
  try {
    const auto& steps = steps_.cut(layout_, call, number, deadline.remaining_ns(monotonic_now_ns()));
    check_inside(table_.perform_steps(inside_, steps.data(), steps.size(), number, deadline.ns()));
  } catch (const Error& error) {
    // The operation was accepted: the other ranks must not wait for it.
    return cpu_->breaker().raise(error.code(), error.message());
  }
  return breaker().broken() ? breaker().status() : Status::kOk;
}

towline_collective_t HostsBackend::inside_message(const towline_collective_t& call) const {
  towline_collective_t here = call;
  if (call.root < 0) return here;
  here.root = static_cast<int32_t>(layout_.index_of[static_cast<size_t>(call.root)]);
  return here;
}

bool HostsBackend::to_another_host(const towline_collective_t& call) const {
  if ((call.op != TOWLINE_COLLECTIVE_SEND && call.op != TOWLINE_COLLECTIVE_RECV) || call.root < 0 ||
      layout_.host_of[static_cast<size_t>(call.root)] == layout_.mine)
    return false;
  if (!messages_->possible())
    fail(Status::kUnsupported,
         "{}: rank {} is on another host, and this backend of GPUs has no strands for messages",
         op_name(call.op), call.root);
  return true;
}

towline_collective_message* HostsBackend::start(const towline_collective_t& call) {
  if (breaker().broken()) fail(breaker().status(), "{}", breaker().breakage().text);
  towline_collective_message* made = nullptr;
  inside_text.clear();
  try {
    const auto check = [this](int32_t status) { check_inside(status); };
    if (to_another_host(call)) {
      const auto steps = messages_->cut(inside_, call, UINT64_MAX, check);
      check(table_.start_steps(inside_, steps.data(), steps.size(), &made));
      return made;
    }
    const towline_collective_t here = inside_message(call);
    const int32_t status = table_.message_start(inside_, &here, &made);
    if (status < 0 && made != nullptr) table_.message_release(inside_, made);
    check(status);
  } catch (const Error& error) {
    // The message was accepted: the other rank must not wait for it.
    (void)cpu_->breaker().raise(error.code(), error.message());
    throw;
  }
  return made;
}

void HostsBackend::abort(Status status, const std::string& text) { cpu_->abort(status, text); }

// On the thread that runs hops.
Status HostsBackend::run(const Hop& hop) {
  Breaker& breaker = cpu_->breaker();
  if (breaker.broken()) return breaker.status();
  if (hop.entries != 0) return exchange(hop);
  Call& call = hop_call_;
  uint8_t* const base = layout_.staging + hop.offset;
  call.header = hop.header;
  call.op = hop.header.op;
  call.datatype = hop.datatype;
  call.reduction = hop.reduction;
  call.divisor = hop.divisor;
  call.root = static_cast<int>(hop.root);
  call.element = datatype_bytes(hop.datatype);
  call.bytes = hop.bytes;
  call.input = call.output = base;
  call.deadline = Deadline::after(monotonic_now_ns(), hop.timeout_ns);
  call.compared = hop.step != 0;
  const size_t hosts = layout_.hosts.size();
  const bool gathers = hop.kind == HopKind::kAllGather || hop.kind == HopKind::kGather;
  Parts& parts = gathers ? call.out : call.in;
  parts.resize(hosts);
  for (size_t host = 0; host < hosts; ++host) {
    parts.at[host] = base + host * hop.stride;
    parts.bytes[host] = hop.bytes;
  }
  switch (hop.kind) {
    case HopKind::kCompare:
      return column_->compare(call);
    case HopKind::kBarrier:
      return layout_.index < layout_.columns ? column_->barrier(call) : Status::kOk;
    case HopKind::kAllReduce:
      return column_->all_reduce(call);
    case HopKind::kAllGather:
      call.input = parts.at[layout_.mine];
      return column_->all_gather(call);
    case HopKind::kReduceScatter:
      call.output = base + hosts * hop.stride;
      return column_->reduce_scatter(call);
    case HopKind::kBroadcast:
      return column_->broadcast(call);
    case HopKind::kReduce:
      return column_->reduce(call);
    case HopKind::kGather:
      call.input = parts.at[layout_.mine];
      return column_->gather(call);
    case HopKind::kScatter:
      call.output = base + hosts * hop.stride;
      return column_->scatter(call);
    case HopKind::kAllToAll:
      call.out.resize(hosts);
      for (size_t host = 0; host < hosts; ++host) {
        call.out.at[host] = base + (hosts + host) * hop.stride;
        call.out.bytes[host] = hop.bytes;
      }
      return column_->all_to_all(call);
    case HopKind::kSizes:
    case HopKind::kExchange:
    case HopKind::kExchangeReduce:
      break;  // they have entries
  }
  return breaker.raise(Status::kInternal, "a hop of an unknown kind");
}

Status HostsBackend::exchange(const Hop& hop) {
  uint8_t* const base = layout_.staging + hop.offset;
  std::array<uint64_t, kMostHopEntries> sizes = {};
  moved_.clear();
  for (uint32_t i = 0; i < hop.entries; ++i) {
    const HopEntry entry = HopEntry::unpack(hop.entry[i]);
    std::span<uint8_t> bytes{base + entry.slot * hop.stride, entry.bytes};
    if (hop.kind == HopKind::kSizes) {
      if (entry.sends) sizes[i] = entry.bytes;
      bytes = {reinterpret_cast<uint8_t*>(&sizes[i]), sizeof sizes[i]};
    }
    moved_.push_back({entry.peer, entry.sends, bytes, bytes});
    (entry.sends ? moved_.back().in : moved_.back().out) = {};
  }
  const Deadline deadline = Deadline::after(monotonic_now_ns(), hop.timeout_ns);
  if (const Status status = cpu_->mesh().exchange_all(hop.header, moved_, deadline); is_error(status))
    return status;
  for (uint32_t i = 0; i < hop.entries && hop.kind == HopKind::kSizes; ++i) {
    const HopEntry entry = HopEntry::unpack(hop.entry[i]);
    if (!entry.sends && sizes[i] != entry.bytes)
      return cpu_->breaker().raise(
          Status::kMismatch,
          fmt::format("ranks disagree in {}: rank {} sends {} bytes to rank {}, which expects {}",
                      collectives::describe(hop.header), entry.peer, sizes[i], rank_, entry.bytes));
  }
  if (hop.kind != HopKind::kExchangeReduce || hop.bytes == 0) return Status::kOk;
  const size_t hosts = layout_.hosts.size();
  sources_.clear();
  for (size_t host = 0; host < hosts; ++host) {
    const size_t slot = host == layout_.mine ? 0 : hop.first + host - (host < layout_.mine ? 0 : 1);
    sources_.push_back(base + slot * hop.stride);
  }
  collectives::reduce({base + (hop.first + hosts - 1) * hop.stride, sources_.data(),
                       static_cast<uint32_t>(hosts), hop.datatype, hop.reduction, hop.divisor,
                       hop.bytes / datatype_bytes(hop.datatype)});
  return Status::kOk;
}

std::string HostsBackend::describe() const {
  nlohmann::json info = nlohmann::json::parse(cpu_->describe(), nullptr, false);
  info["hosts"] = layout_.hosts;
  info["staging_bytes"] = 2 * layout_.half;
  info["message_strands"] = messages_->strands();
  info["window_strands"] = windows_->strands();
  info["on_this_host"] = describe_inside();
  return info.dump();
}

nlohmann::json HostsBackend::describe_inside() const {
  std::string text(65536, 0);
  size_t needed = 0;
  if (table_.describe(inside_, text.data(), text.size(), &needed) < 0 || needed > text.size()) return {};
  return nlohmann::json::parse(text.c_str(), nullptr, false);
}

// ---- For windows

int32_t HostsBackend::index_here(int32_t rank) const noexcept {
  const auto i = static_cast<size_t>(rank);
  return layout_.host_of[i] == layout_.mine ? static_cast<int32_t>(layout_.index_of[i]) : -1;
}

uint64_t HostsBackend::gpu() const {
  const nlohmann::json said = describe_inside();
  if (!said.is_object() || !said.contains("gpu"))
    fail(Status::kUnsupported, "this backend of GPUs does not say which GPU it uses");
  return said["gpu"].get<uint64_t>();
}

}  // namespace towline::collectives
