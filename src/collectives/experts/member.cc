#include "collectives/experts/member.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/config/config.h"
#include "base/error.h"
#include "base/os/host_identity.h"
#include "base/os/socket_address.h"
#include "collectives/experts/taken.h"

namespace towline::collectives::experts {
namespace {

constexpr uint32_t kMostBlocks = 256;
constexpr uint64_t kMostCount = (uint64_t{1} << kCountBits) - 1;
constexpr size_t kMostOpen = 2;
// Of nonces: not 0.
uint32_t tag_of(uint64_t key) { return static_cast<uint32_t>(key >> 48) | 1; }
constexpr auto kLook = std::chrono::microseconds(50);

const towline_experts_options& checked(const towline_experts_options& options, size_t gpus) {
  if (options.gpu >= gpus)
    fail(Status::kInvalidArgument, "experts: there is no GPU {}: this process sees {}", options.gpu, gpus);
  if (options.capacity == 0 || options.capacity > kMostRanks)
    fail(Status::kInvalidArgument, "experts: a group has 1 to {} ranks, not {}", kMostRanks,
         options.capacity);
  if (options.rank >= options.capacity)
    fail(Status::kInvalidArgument, "experts: rank {} is out of range for a group of {}", options.rank,
         options.capacity);
  if (options.local == 0 || options.local > 1024)
    fail(Status::kInvalidArgument, "experts: a rank has 1 to 1024 experts, not {}", options.local);
  if (options.host != nullptr && std::string_view(options.host).size() > kMostHost)
    fail(Status::kInvalidArgument, "experts: a host's name has at most {} bytes", kMostHost);
  if (options.timeout_ns == 0)
    fail(Status::kInvalidArgument, "experts: the timeout is 0: give at least 1 ms");
  return options;
}

Command command_of(uint32_t op) {
  switch (op) {
    case TOWLINE_EXPERTS_MASK:
      return Command::kMask;
    case TOWLINE_EXPERTS_UNMASK:
      return Command::kUnmask;
    case TOWLINE_EXPERTS_CLEAN:
      return Command::kClean;
    default:
      return Command::kQuery;
  }
}

// Where the member's agent listens if its program does not say, and ranks may be on other hosts: at the hosts of the setting `listen`, at
// ports of its own.
std::string listen_of(const Config& config, uint32_t rank) {
  if (!config.find("listen")) return "*:0";
  std::string hosts;
  for (const std::string& text : config.get_list("listen")) {
    if (text == "none") continue;
    Endpoint endpoint = parse_endpoint(text, 0);
    if (endpoint.is_unix) continue;
    endpoint.port = 0;
    hosts += (hosts.empty() ? "" : ",") + endpoint.text();
  }
  if (hosts.empty())
    fail(Status::kInvalidArgument,
         "experts: ranks of other hosts are to reach rank {}, but listen is '{}' ({}): name an address of "
         "this host",
         rank, config.get_string("listen"), config.source("listen"));
  return hosts;
}

}  // namespace

Member::Member(cuda::KernelDevice& device, const cuda::KernelSet& kernels,
               const towline_experts_options& options)
    : device_(device),
      gpu_(checked(options, device.gpus().size()).gpu),
      rank_(options.rank),
      bytes_(options.bytes / grain_of(options.capacity) * grain_of(options.capacity)),
      timeout_ns_(options.timeout_ns),
      host_(options.host == nullptr ? "" : options.host),
      listen_(options.listen == nullptr ? "" : options.listen) {
  if (options.functions != nullptr)
    functions_ = taken(options.functions, TOWLINE_EXPERTS_FUNCTIONS_V1_MINIMUM);
  layout_.capacity = options.capacity;
  layout_.local = options.local;
  layout_.area_bytes = bytes_ / (kAreas * layout_.capacity);
  kernels_ = device_.load(gpu_, kernels);
  stream_ = device_.make_stream(gpu_);
  done_ = device_.make_moment(gpu_);
  last_ = device_.make_moment(gpu_);
  last_command_ = device_.make_moment(gpu_);
  piece_ = device_.allocate(gpu_, segment_bytes());
  // Here, as it may wait for kernels that run, and theirs may wait for this rank.
  report_ = device_.make_words(gpu_, sizeof(Report));
  server_ = std::make_unique<PieceServer>(piece_);
  // A rank's tokens for itself take the same way.
  for (uint32_t peer = 0; peer < layout_.capacity; ++peer)
    if (peer != rank_) command_now(Command::kMask, peer);
  connect_now(rank_, {piece_->address(), piece_->address(), piece_->address()}, description());
  command_now(Command::kUnmask, rank_);
  peers_[rank_] = {piece_, true};
}

Member::~Member() {
  end_work();
  proxy_.reset();
}

void Member::open_to_hosts() {
  if (proxy_ != nullptr) return;
  if (!functions_)
    fail(Status::kUnsupported,
         "experts: rank {} was opened without Towline's functions: ranks of other hosts can't reach it",
         rank_);
  const Config config = Config::from_process();
  const bool here_alone = listen_.empty() && !config.find("listen") && !elsewhere_.value_or(true);
  std::string listen = listen_;
  if (listen.empty()) listen = here_alone ? "127.0.0.1:0" : listen_of(config, rank_);
  // Its memory is cut another way from here on.
  if (use_ == Use::kBatches) end_batches();
  proxy_ = std::make_unique<Proxy>(
      device_, *functions_,
      Proxy::Options{gpu_, rank_, layout_, piece_->address(), device_.on_host(), timeout_ns_, listen.c_str()},
      recorded_slots_);
  stays_here_ = here_alone;
}

// Waits for this member's kernels alone: those of other ranks of the process may be waiting for it. Replays of graphs can't be told
// from other work.
void Member::end_work() noexcept {
  if (recorded_) device_.settle(gpu_);
  end_calls();
}

// The same, but for replays.
void Member::end_calls() noexcept {
  if (!last_tells_all_) device_.settle(gpu_);
  for (cuda::Moment* const last : {last_.get(), last_command_.get()})
    while (last->state() == cuda::Moment::kBusy) std::this_thread::sleep_for(kLook);
}

uint64_t Member::bytes_for(uint32_t capacity, uint32_t local, uint32_t max_tokens, uint32_t hidden) noexcept {
  const Layout layout{capacity, local, 0, Layout::slot_bytes_of(hidden), max_tokens};
  return kAreas * capacity * layout.needed_bytes();
}

uint32_t Member::blocks() const noexcept {
  const auto sharing = static_cast<uint32_t>(
      std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.on_this_gpu; }));
  return std::clamp(device_.gpus()[gpu_].multiprocessors / std::max(sharing, 1u), 1u, kMostBlocks);
}

// ---- Connections

std::vector<uint8_t> Member::describe() const { return encode(description()); }

Description Member::description() const {
  Description mine;
  mine.rank = rank_;
  mine.capacity = layout_.capacity;
  mine.local = layout_.local;
  mine.piece.key = server_->key();
  mine.piece.bytes = piece_->bytes();
  mine.piece.length = segment_bytes();
  mine.piece.host = read_host_identity();
  mine.piece.gpu = device_.gpus()[gpu_].uuid;
  mine.piece.partitioned = device_.gpus()[gpu_].partitioned;
  mine.piece.socket = server_->socket();
  mine.host = host_;
  mine.opens = functions_.has_value();
  if (proxy_ != nullptr) mine.side = proxy_->side();
  return mine;
}

void Member::connect(uint32_t rank, std::span<const uint8_t> description, uint64_t timeout_ns) {
  if (rank >= layout_.capacity || rank == rank_)
    fail(Status::kInvalidArgument, "experts: rank {} of {} can't connect to rank {}", rank_, layout_.capacity,
         rank);
  if (is_connected(rank))
    fail(Status::kAlreadyExists, "experts: rank {} is connected already: disconnect it first", rank);
  const auto from = decode_description(description);
  if (!from) fail(Status::kMismatch, "experts: rank {} runs another build of Towline", rank);
  if (from->rank != rank)
    fail(Status::kInvalidArgument, "experts: the description of rank {} is rank {}'s", rank, from->rank);
  if (from->capacity != layout_.capacity || from->local != layout_.local ||
      from->piece.length != segment_bytes())
    fail(Status::kMismatch,
         "experts: rank {} has room for {} ranks of {} experts in {} bytes, this one for {} of {} in {}: "
         "give all ranks the same sizes",
         rank, from->capacity, from->local, from->piece.length, layout_.capacity, layout_.local,
         segment_bytes());
  const bool reached = within_reach(*from, device_.gpus()[gpu_], host_);
  // Ranks that exchange batches are all open to other hosts, or none.
  if (reached && use_ != Use::kExchanges && functions_ && !from->side.metadata.empty()) open_to_hosts();
  if (!reached) {
    connect_now(rank, reach(rank, *from, timeout_ns), *from);
    return;
  }
  Peer peer{take_piece(device_, gpu_, *from, Deadline::after(monotonic_now_ns(), timeout_ns)),
            from->piece.gpu == device_.gpus()[gpu_].uuid};
  const uint64_t at = peer.piece->address();
  connect_now(rank, {at, at, piece_->address()}, *from);
  peers_[rank] = std::move(peer);
}

// A rank whose memory can't be mapped.
RemoteBases Member::reach(uint32_t rank, const Description& from, uint64_t timeout_ns) {
  if (!functions_ || !from.opens)
    fail(Status::kUnsupported,
         "experts: the memory of rank {} can't be mapped (another host, or an instance of MIG), and rank {} "
         "was "
         "opened without Towline's functions",
         rank, functions_ ? rank : rank_);
  const bool elsewhere = !from.piece.host.same_network_namespace(read_host_identity());
  if (elsewhere && stays_here_)
    fail(
        Status::kUnsupported,
        "experts: rank {} is on another host, and rank {} listens at 127.0.0.1 alone, since it knew of ranks "
        "of this host alone when it opened: set listen (TOWLINE_LISTEN) to an address of this host first",
        rank, rank_);
  if (proxy_ == nullptr) elsewhere_ = elsewhere || elsewhere_.value_or(false);
  if (proxy_ == nullptr || from.side.metadata.empty())
    fail(Status::kAgain,
         "experts: the memory of rank {} can't be mapped (another host, or an instance of MIG), and rank {} "
         "is "
         "not open to other hosts yet: open both, and exchange their descriptions again",
         rank, proxy_ == nullptr ? rank_ : rank);
  return proxy_->connect(rank, from.side, timeout_ns);
}

void Member::disconnect(uint32_t rank) {
  if (rank >= layout_.capacity || rank == rank_ || !is_connected(rank))
    fail(Status::kInvalidArgument, "experts: rank {} is not connected to rank {}", rank, rank_);
  end_work();
  counted_.reset();  // its RECEIVE would read the rank's memory
  __atomic_store_n(&report().absent[rank], 0, __ATOMIC_RELEASE);
  command_now(Command::kDisconnect, rank);
  if (proxy_ != nullptr) proxy_->disconnect(rank);
  peers_[rank] = {};
  in_batches_ &= ~(uint64_t{1} << rank);
}

bool Member::is_connected(uint32_t rank) const noexcept {
  return peers_[rank].piece != nullptr || (proxy_ != nullptr && proxy_->has(rank));
}

void Member::command_now(Command command, uint32_t peer, const RemoteBases& bases) {
  run_command(command_job(command, peer, bases));
}

void Member::connect_now(uint32_t rank, const RemoteBases& bases, const Description& from) {
  Job job = command_job(Command::kConnect, rank, bases);
  job.peer_tag = tag_of(from.piece.key);
  job.topk_idx = host_of(from);
  run_command(job);
}

Job Member::command_job(Command command, uint32_t peer, const RemoteBases& bases) const {
  Job job = own_job();
  job.command = command;
  job.ranks = layout_.capacity;
  job.peer = peer;
  job.x = bases.peer;
  job.scales = bases.slots;
  job.out = bases.from;
  return job;
}

// In the member's own stream, and waits for it alone: other kernels may wait for what comes of this.
void Member::run_command(const Job& job) {
  run(Kernel::kCommand, job, 1, stream_->native());
  if (const cuda::Code code = done_->record(stream_->native()); code != 0)
    fail(Status::kIo, "experts: the GPU refused an event: {}", device_.code_text(code));
  cuda::Code state = 0;
  while ((state = done_->state()) == cuda::Moment::kBusy) std::this_thread::sleep_for(kLook);
  if (state != 0) fail(Status::kIo, "experts: a kernel failed: {}", device_.code_text(state));
}

// ---- Exchanges

Layout Member::layout_of(uint32_t max_tokens, uint32_t hidden) const {
  Layout layout = layout_;
  layout.slot_bytes = Layout::slot_bytes_of(hidden);
  layout.max_tokens = max_tokens;
  if (layout.needed_bytes() > layout.area_bytes)
    fail(Status::kInvalidArgument,
         "experts: {} tokens of {} elements for {} ranks of {} experts need {} bytes; this rank has {}: "
         "open it with more, on every rank",
         max_tokens, hidden, layout_.capacity, layout_.local,
         kAreas * layout_.capacity * layout.needed_bytes(), bytes_);
  return layout;
}

uint64_t Member::results(uint32_t max_tokens, uint32_t hidden) const {
  return piece_->address() + layout_of(max_tokens, hidden).results_at();
}

void Member::check_shape(const towline_experts_call& call) const {
  const uint32_t grain = (call.format & kFp8) != 0 ? 512 : kScaled;
  if (call.hidden == 0 || call.hidden > kMostHidden || call.hidden % grain != 0)
    fail(Status::kInvalidArgument, "experts: a token has a multiple of {} elements up to {}, not {}", grain,
         kMostHidden, call.hidden);
  if (call.topk == 0 || call.topk > kMostTopk)
    fail(Status::kInvalidArgument, "experts: a token has 1 to {} routes, not {}", kMostTopk, call.topk);
  if (call.ranks <= rank_ || call.ranks > layout_.capacity)
    fail(Status::kInvalidArgument, "experts: an exchange among {} ranks, of {}, at rank {}", call.ranks,
         layout_.capacity, rank_);
  if (call.max_tokens == 0 || uint64_t{call.max_tokens} * layout_.local > kMostCount)
    fail(Status::kInvalidArgument, "experts: at most {} tokens of a rank for {} experts, not {}",
         kMostCount / layout_.local, layout_.local, call.max_tokens);
  if (call.tokens > call.max_tokens)
    fail(Status::kInvalidArgument, "experts: {} tokens are more than the {} that ranks agreed on",
         call.tokens, call.max_tokens);
  if (call.op == TOWLINE_EXPERTS_COMBINE) {
    if (call.format != kBfloat16 && call.format != kLogFmt)
      fail(Status::kUnsupported, "experts: combine takes bfloat16, or LogFMT of it, not format {}",
           call.format);
    return;
  }
  const bool fp8 = (call.format & kFp8) != 0;
  const bool rounds = (call.format & kRoundScale) != 0;
  if (call.format > (kFp8 | kRoundScale | kUe8m0) || (rounds && !fp8) ||
      ((call.format & kUe8m0) != 0 && !rounds))
    fail(Status::kInvalidArgument, "experts: format {}: UE8M0 needs rounded scales, and these need FP8",
         call.format);
}

void Member::check_addresses(const towline_experts_call& call) const {
  const bool dispatch = call.op == TOWLINE_EXPERTS_DISPATCH;
  const bool tokens = call.tokens != 0;
  const bool scales = dispatch && (call.format & kFp8) != 0;
  const struct {
    const void* address;
    bool needed;
    uint64_t aligned;
    const char* name;
  } all[] = {{call.x, dispatch ? tokens : true, 16, "x"},
             {call.topk_idx, tokens, 8, "topk_idx"},
             {call.topk_weights, !dispatch && tokens, 4, "topk_weights"},
             {call.out, dispatch ? true : tokens, 16, "out"},
             {call.scales, scales, 4, "scales"},
             {call.src_info, true, 4, "src_info"},
             {call.layout_range, true, 8, "layout_range"},
             {call.count, dispatch, 4, "count"},
             {call.stats, false, 4, "stats"},
             {call.wait_ns, false, 8, "wait_ns"}};
  for (const auto& [pointer, needed, aligned, name] : all) {
    const auto address = reinterpret_cast<uint64_t>(pointer);
    if (address == 0 && !needed) continue;
    if (address == 0) fail(Status::kInvalidArgument, "experts: {} is null", name);
    if (address % aligned != 0)
      fail(Status::kInvalidArgument, "experts: {} is not aligned to {} bytes", name, aligned);
    if (address - piece_->address() >= piece_->bytes() && !device_.usable(gpu_, address))
      fail(Status::kInvalidArgument, "experts: {} is not memory of GPU {}", name, gpu_);
  }
}

// Returns whether it records a graph.
bool Member::check_stream(void* stream) const {
  uint64_t graph = 0;
  if (device_.stream_state(gpu_, stream, graph) == cuda::StreamState::kForeign)
    fail(Status::kInvalidArgument, "experts: the stream is not of GPU {}", gpu_);
  return graph != 0;
}

// Exchanges are numbered by their sends, and received in that order.
void Member::check_order(const towline_experts_call& call) const {
  if (call.phases == 0 || call.phases > (TOWLINE_EXPERTS_SEND | TOWLINE_EXPERTS_RECEIVE))
    fail(Status::kInvalidArgument, "experts: phases {}: give SEND, RECEIVE or both", call.phases);
  if (call.phases == TOWLINE_EXPERTS_RECEIVE) {
    if (open_.empty() || open_.front().ticket != call.ticket || open_.front().op != call.op)
      fail(Status::kInvalidArgument,
           "experts: exchanges are received in the order in which they were sent, and once each: call the "
           "hook of the oldest one");
  } else if (call.phases == TOWLINE_EXPERTS_SEND) {
    if (open_.size() >= kMostOpen)
      fail(Status::kInvalidArgument,
           "experts: {} exchanges were sent and not received: call their hooks first", open_.size());
  } else if (!open_.empty()) {
    fail(Status::kInvalidArgument,
         "experts: an exchange was sent before this one and not received: call its hook first");
  }
}

Job Member::own_job() const {
  Job job = {};
  job.segment = piece_->address();
  job.layout = layout_;
  job.rank = rank_;
  job.tag = tag_of(server_->key());
  job.timeout_ns = timeout_ns_;
  job.batch.report = report_->gpu();
  return job;
}

Job Member::job_of(const towline_experts_call& call) const {
  Job job = own_job();
  job.x = reinterpret_cast<uint64_t>(call.x);
  job.topk_idx = reinterpret_cast<uint64_t>(call.topk_idx);
  job.topk_weights = reinterpret_cast<uint64_t>(call.topk_weights);
  job.out = reinterpret_cast<uint64_t>(call.out);
  job.scales = reinterpret_cast<uint64_t>(call.scales);
  job.src_info = reinterpret_cast<uint64_t>(call.src_info);
  job.layout_range = reinterpret_cast<uint64_t>(call.layout_range);
  job.count = reinterpret_cast<uint64_t>(call.count);
  job.stats = reinterpret_cast<uint64_t>(call.stats);
  job.wait_ns = reinterpret_cast<uint64_t>(call.wait_ns);
  job.ranks = call.ranks;
  job.tokens = call.tokens;
  job.hidden = call.hidden;
  job.topk = call.topk;
  job.format = call.format;
  job.peer = call.peer;
  return job;
}

void Member::run(Kernel kernel, const Job& job, uint64_t blocks, void* stream) {
  const auto most = std::clamp<uint64_t>(blocks, 1, this->blocks());
  if (const cuda::Code code =
          kernels_->launch(static_cast<uint32_t>(kernel), &job, {static_cast<uint32_t>(most)}, stream);
      code != 0)
    fail(Status::kIo, "experts: the GPU refused a kernel: {}", device_.code_text(code));
}

void Member::exchange(towline_experts_call& call, bool records, void* stream) {
  check_shape(call);
  check_use(Use::kExchanges);
  check_order(call);
  check_addresses(call);
  Job job = job_of(call);
  job.layout = layout_of(call.max_tokens, call.hidden);
  use_ = Use::kExchanges;
  if ((call.phases & TOWLINE_EXPERTS_SEND) != 0) find_ways(call, records);
  put_in_stream(records, stream, *last_, [&] { run_exchange(call, job, stream); });
}

// To ranks of other hosts. Before there can be such, what graphs need is remembered: replays may come after that.
void Member::find_ways(const towline_experts_call& call, bool records) {
  const Slots slots = Slots::of(call.hidden, call.max_tokens, call.format);
  if (proxy_ == nullptr) {
    if (records && recorded_slots_.all().size() < KeptShapes<Slots>::kMostRecorded)
      (void)recorded_slots_.use(slots, true);
    return;
  }
  if (proxy_->replaces(slots, records)) end_calls();
  proxy_->prepare(slots, call.ranks, records);
}

void Member::run_exchange(towline_experts_call& call, const Job& job, void* stream) {
  const bool dispatch = call.op == TOWLINE_EXPERTS_DISPATCH;
  const uint64_t arrived = uint64_t{layout_.local} * call.ranks * call.max_tokens;
  if ((call.phases & TOWLINE_EXPERTS_SEND) != 0) {
    run(dispatch ? Kernel::kDispatchSend : Kernel::kCombineSend, job, dispatch ? call.tokens : arrived,
        stream);
    if ((call.phases & TOWLINE_EXPERTS_RECEIVE) == 0) {
      call.ticket = ++last_ticket_;
      open_.push_back({call.ticket, call.op});
      return;
    }
  }
  run(dispatch ? Kernel::kDispatchAwait : Kernel::kCombineAwait, job, 1, stream);
  run(dispatch ? Kernel::kDispatchPack : Kernel::kCombineReduce, job, dispatch ? arrived : call.tokens,
      stream);
  if (call.phases == TOWLINE_EXPERTS_RECEIVE) open_.pop_front();
}

void Member::check_peer(const towline_experts_call& call) const {
  if (call.op != TOWLINE_EXPERTS_MASK && call.op != TOWLINE_EXPERTS_UNMASK) return;
  if (call.peer >= layout_.capacity)
    fail(Status::kInvalidArgument, "experts: rank {} is out of range for a group of {}", call.peer,
         layout_.capacity);
  if (call.op == TOWLINE_EXPERTS_MASK && call.peer == rank_)
    fail(Status::kInvalidArgument, "experts: rank {} can't mask itself", rank_);
  if (call.op == TOWLINE_EXPERTS_UNMASK && !is_connected(call.peer))
    fail(Status::kInvalidArgument, "experts: rank {} can't be unmasked before it is connected", call.peer);
}

void Member::issue(towline_experts_call& call, void* stream) {
  const bool records = check_stream(stream);
  if (call.op <= TOWLINE_EXPERTS_COMBINE)
    exchange(call, records, stream);
  else
    small(call, records, stream);
}

void Member::order_after_last(void* stream) {
  if (const cuda::Code code = last_->precede(stream); code != 0) {
    last_tells_all_ = false;
    fail(Status::kIo, "experts: the GPU refused to order a stream after an event: {}",
         device_.code_text(code));
  }
}

void Member::record_end(bool records, void* stream, cuda::Moment& end) {
  recorded_ = recorded_ || records;
  if (records) return;
  if (const cuda::Code code = end.record(stream); code != 0) {
    last_tells_all_ = false;
    fail(Status::kIo, "experts: the GPU refused an event: {}", device_.code_text(code));
  }
}

// The first kernels may run. The error that is on its way says more than another one here would.
void Member::record_end_of_failed(bool records, void* stream, cuda::Moment& end) noexcept {
  recorded_ = recorded_ || records;
  if (!records && end.record(stream) != 0) last_tells_all_ = false;
}

void Member::check_use(Use use) const {
  if (use_ != Use::kNone && use_ != use)
    fail(Status::kInvalidArgument,
         "experts: rank {} was opened for {}: a member's memory is for either. Open another one for {}",
         rank_, use == Use::kBatches ? "small exchanges" : "batches",
         use == Use::kBatches ? "batches" : "these");
}

void Member::small(const towline_experts_call& call, bool records, void* stream) {
  if (call.op > TOWLINE_EXPERTS_QUERY)
    fail(Status::kInvalidArgument, "experts: there is no call {}", call.op);
  check_peer(call);
  Job job = job_of(call);
  const bool barrier = call.op == TOWLINE_EXPERTS_BARRIER;
  if (!barrier) job.command = command_of(call.op);
  if (call.op == TOWLINE_EXPERTS_QUERY &&
      (call.out == nullptr || job.out % 4 != 0 || !device_.usable(gpu_, job.out)))
    fail(Status::kInvalidArgument, "experts: the mask's place is not aligned memory of GPU {}", gpu_);
  const bool amid_exchanges = use_ == Use::kExchanges;
  put_in_stream(records, stream, amid_exchanges ? *last_command_ : *last_, [&] {
    // It must not change masks amid a batch in another stream, and last_ has to tell of both from now on.
    if (!records && !amid_exchanges) order_after_last(stream);
    run(barrier ? Kernel::kBarrier : Kernel::kCommand, job, 1, stream);
  });
  unmasked_ = unmasked_ || call.op == TOWLINE_EXPERTS_UNMASK || call.op == TOWLINE_EXPERTS_CLEAN;
}

}  // namespace towline::collectives::experts
