// A member's batches: what calls may give, where things lie in a stage, and the rounds of kernels.
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "base/error.h"
#include "collectives/experts/member.h"
#include "collectives/experts/mix.h"

namespace towline::collectives::experts {
namespace {

constexpr uint32_t kMostTokens = (1u << kCountBits) - 1;
constexpr uint64_t kStageGrain = 256;
constexpr uint32_t kMostTokenBytes = 1u << 20;
constexpr auto kTotalsLook = std::chrono::microseconds(50);
constexpr uint32_t kLooksAtOnce = 1 << 14;  // before the host sleeps between two

// For how long the host waits for totals. The device waits twice at most, for room and for the ranks; work ahead of it in the stream takes
// its own time.
constexpr uint64_t host_wait_ns(uint64_t timeout_ns) {
  constexpr uint64_t kTimeouts = 3;
  constexpr uint64_t kLeastNs = 100'000'000'000;
  return timeout_ns > UINT64_MAX / kTimeouts ? UINT64_MAX : std::max(kTimeouts * timeout_ns, kLeastNs);
}
static_assert(host_wait_ns(1) == 100'000'000'000 && host_wait_ns(60'000'000'000) == 180'000'000'000);
static_assert(host_wait_ns(UINT64_MAX) == UINT64_MAX && host_wait_ns(UINT64_MAX / 3 + 1) == UINT64_MAX);

constexpr uint64_t rounded_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

bool is_dispatch(const towline_experts_batch& call) { return call.op == TOWLINE_EXPERTS_BATCH_DISPATCH; }
bool asks_for_counts(const towline_experts_batch& call) {
  return is_dispatch(call) && call.phases != (TOWLINE_EXPERTS_SEND | TOWLINE_EXPERTS_RECEIVE);
}

// Of what all ranks must give alike. Bit 0 is the half's, and no shape of a small exchange has bit 63.
uint64_t batch_shape(const towline_experts_batch& call, uint32_t round, bool mirrors) {
  Mix mix;
  for (const uint64_t value : {uint64_t{call.op}, uint64_t{call.ranks}, uint64_t{call.token_bytes},
                               uint64_t{call.scales}, uint64_t{call.topk}, uint64_t{call.experts},
                               uint64_t{asks_for_counts(call)}, uint64_t{round}, uint64_t{mirrors}})
    mix.add(value);
  return (mix.value << 1) | uint64_t{1} << 63;
}

}  // namespace

// ---- Checks

void Member::check_batch(const towline_experts_batch& call) const {
  if (call.op > TOWLINE_EXPERTS_BATCH_COMBINE)
    fail(Status::kInvalidArgument, "experts: there is no batch {}", call.op);
  if (call.phases == 0 || call.phases > (TOWLINE_EXPERTS_SEND | TOWLINE_EXPERTS_RECEIVE) ||
      (!is_dispatch(call) && call.phases != (TOWLINE_EXPERTS_SEND | TOWLINE_EXPERTS_RECEIVE)))
    fail(Status::kInvalidArgument, "experts: phases {} of a batch: a combine has both, a dispatch any",
         call.phases);
  if (call.tokens > kMostTokens || call.max_tokens > kMostTokens)
    fail(Status::kInvalidArgument, "experts: a rank has at most {} tokens in a batch, not {}", kMostTokens,
         std::max(call.tokens, call.max_tokens));
  if (call.phases != TOWLINE_EXPERTS_SEND && call.tokens > call.max_tokens)
    fail(Status::kInvalidArgument, "experts: {} tokens are more than the {} of the dispatch that was counted",
         call.tokens, call.max_tokens);
  if (call.token_bytes == 0 || call.token_bytes % 16 != 0 || call.token_bytes > kMostTokenBytes)
    fail(Status::kInvalidArgument, "experts: a token has a multiple of 16 bytes up to {}, not {}",
         kMostTokenBytes, call.token_bytes);
  if (call.scales > kMostBatchScales || (!is_dispatch(call) && call.scales != 0))
    fail(Status::kInvalidArgument,
         "experts: {} scales of a token: a dispatch has at most {}, and a combine none", call.scales,
         kMostBatchScales);
  if (call.topk > kMostBatchTopk)
    fail(Status::kInvalidArgument, "experts: a token has at most {} routes in a batch, not {}",
         kMostBatchTopk, call.topk);
  if (asks_for_counts(call) && (call.experts == 0 || call.experts > kMostBatchExperts))
    fail(Status::kInvalidArgument, "experts: a rank has 1 to {} experts, not {}", kMostBatchExperts,
         call.experts);
  if (!asks_for_counts(call) && is_dispatch(call) && call.topk != 0)
    fail(Status::kInvalidArgument, "experts: a dispatch with known counts has no routes, not {}", call.topk);
}

void Member::check_batch_ranks(const towline_experts_batch& call) const {
  if (call.ranks <= rank_ || call.ranks > layout_.capacity)
    fail(Status::kInvalidArgument, "experts: a batch among {} ranks, of {}, at rank {}", call.ranks,
         layout_.capacity, rank_);
  for (uint32_t rank = 0; rank < call.ranks; ++rank)
    if (!is_connected(rank))
      fail(Status::kInvalidArgument,
           "experts: rank {} is not connected to rank {}: a batch is among all of {} ranks", rank, rank_,
           call.ranks);
  for (uint32_t rank = call.ranks; rank < layout_.capacity; ++rank)
    if ((in_batches_ >> rank & 1) != 0)
      fail(Status::kInvalidArgument,
           "experts: a batch among {} ranks, but rank {} had a part in an earlier one of rank {}, and may "
           "still read what that one put: disconnect it first, or exchange among {} ranks",
           call.ranks, rank, rank_, rank + 1);
  if (proxy_ != nullptr && proxy_->stage_is_read())
    fail(Status::kBusy,
         "experts: a transfer to a rank that was disconnected may still read the memory of rank {}: try "
         "again, or close this member and open another one",
         rank_);
}

void Member::check_batch_addresses(const towline_experts_batch& call) const {
  const bool dispatch = is_dispatch(call);
  const bool sends = call.phases != TOWLINE_EXPERTS_RECEIVE;
  const bool receives = call.phases != TOWLINE_EXPERTS_SEND;
  const uint32_t rows_in = dispatch ? call.tokens : call.received;
  const uint32_t rows_out = dispatch ? call.received : call.tokens;
  const bool in = sends && rows_in != 0;
  const bool out = receives && rows_out != 0;
  const struct {
    const void* address;
    bool needed;
    uint64_t aligned;
    const char* name;
  } all[] = {{call.x, in, 16, "x"},
             {call.x_scales, in && call.scales != 0, 4, "x_scales"},
             {call.topk_idx, dispatch && in && call.topk != 0, 8, "topk_idx"},
             {call.topk_weights, in && call.topk != 0, 4, "topk_weights"},
             {call.in_rank, call.tokens != 0, 1, "in_rank"},
             {call.tokens_per_expert, asks_for_counts(call) && sends, 4, "tokens_per_expert"},
             {call.bias[0], false, 16, "bias[0]"},
             {call.bias[1], false, 16, "bias[1]"},
             {call.prefix, true, 4, "prefix"},
             {call.source_tokens, receives && call.received != 0, 4, "source_tokens"},
             {call.out, out, 16, "out"},
             {call.out_scales, out && call.scales != 0, 4, "out_scales"},
             {call.out_topk_idx, dispatch && out && call.topk != 0, 8, "out_topk_idx"},
             {call.out_topk_weights, out && call.topk != 0, 4, "out_topk_weights"}};
  for (const auto& [pointer, needed, aligned, name] : all) {
    const auto address = reinterpret_cast<uint64_t>(pointer);
    if (address == 0 && !needed) continue;
    if (address == 0) fail(Status::kInvalidArgument, "experts: {} is null", name);
    if (address % aligned != 0)
      fail(Status::kInvalidArgument, "experts: {} is not aligned to {} bytes", name, aligned);
    if (!device_.usable(gpu_, address))
      fail(Status::kInvalidArgument, "experts: {} is not memory of GPU {}", name, gpu_);
  }
  if (call.phases == TOWLINE_EXPERTS_SEND && call.received_per_expert == nullptr)
    fail(Status::kInvalidArgument, "experts: received_per_expert is null");
}

// What an earlier batch of these ranks had to do without.
void Member::check_absent(uint32_t ranks, bool records) {
  const auto* const absent_ranks = report().absent;
  const bool any = std::any_of(absent_ranks, absent_ranks + ranks, [](const uint64_t& absent) {
    return __atomic_load_n(&absent, __ATOMIC_ACQUIRE) != 0;
  });
  if (any && unmasked_ && records)
    fail(
        Status::kInvalidArgument,
        "experts: a batch of rank {} had to do without a rank, and the call that unmasks it may not have run "
        "yet: wait for its stream before you record a graph",
        rank_);
  if (any && unmasked_) {
    end_work();
    unmasked_ = false;
  }
  std::string late;
  std::string different;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const uint64_t absent = __atomic_load_n(&report().absent[rank], __ATOMIC_ACQUIRE);
    if (absent == 0) continue;
    std::string& named = absent == Report::kLate ? late : different;
    named += (named.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (!different.empty())
    fail(Status::kMismatch,
         "experts: rank {} came to another batch than rank {}, or with another shape, or with counts that "
         "its tokens can't have: all ranks must make the same calls in the same order, with the same token "
         "size, scales, routes and experts, and be open to other hosts if one of them is. Unmask it on both "
         "sides to go on",
         different, rank_);
  if (!late.empty())
    fail(Status::kTimedOut,
         "experts: rank {} is masked, or did not come to a batch of rank {} within {} ms, whose output has "
         "NaN for it. Unmask it on both sides, or replace it, to go on",
         late, rank_, timeout_ns_ / 1'000'000);
}

// A RECEIVE reads what its SEND left in the stages.
void Member::check_counted(const towline_experts_batch& call) const {
  if (!counted_)
    fail(
        Status::kInvalidArgument,
        "experts: a RECEIVE comes right after the SEND that counted, and once: no other batch, no disconnect "
        "and no opening to other hosts may be between them");
  const towline_experts_batch& sent = *counted_;
  if (call.ranks != sent.ranks || call.tokens != sent.tokens || call.max_tokens != sent.max_tokens ||
      call.received != sent.received || call.token_bytes != sent.token_bytes || call.scales != sent.scales ||
      call.topk != sent.topk || call.experts != sent.experts || call.prefix != sent.prefix)
    fail(Status::kInvalidArgument,
         "experts: a RECEIVE of {} rows of at most {} tokens of {} bytes after a SEND that counted {} of {} "
         "of {}: give it the SEND's ranks, tokens, token_bytes, scales, topk, experts and prefix, and what "
         "the SEND set",
         call.received, call.max_tokens, call.token_bytes, sent.received, sent.max_tokens, sent.token_bytes);
}

// ---- Rounds

Job Member::batch_job(const towline_experts_batch& call) const {
  Job job = own_job();
  job.x = reinterpret_cast<uint64_t>(call.x);
  job.scales = reinterpret_cast<uint64_t>(call.x_scales);
  job.topk_idx = reinterpret_cast<uint64_t>(call.topk_idx);
  job.topk_weights = reinterpret_cast<uint64_t>(call.topk_weights);
  job.out = reinterpret_cast<uint64_t>(call.out);
  job.ranks = call.ranks;
  job.tokens = call.tokens;
  job.topk = call.topk;
  Batch& batch = job.batch;
  batch.in_rank = reinterpret_cast<uint64_t>(call.in_rank);
  batch.per_expert = reinterpret_cast<uint64_t>(call.tokens_per_expert);
  batch.prefix = reinterpret_cast<uint64_t>(call.prefix);
  batch.source_tokens = reinterpret_cast<uint64_t>(call.source_tokens);
  batch.bias[0] = reinterpret_cast<uint64_t>(call.bias[0]);
  batch.bias[1] = reinterpret_cast<uint64_t>(call.bias[1]);
  batch.out_scales = reinterpret_cast<uint64_t>(call.out_scales);
  batch.out_routes = reinterpret_cast<uint64_t>(call.out_topk_idx);
  batch.out_weights = reinterpret_cast<uint64_t>(call.out_topk_weights);
  batch.scale_token_stride = call.scale_token_stride;
  batch.scale_stride = call.scale_stride;
  batch.payload = call.token_bytes;
  batch.scales = call.scales;
  batch.experts = call.experts;
  batch.alignment = std::max(call.alignment, 1u);
  batch.relays = proxy_ != nullptr && is_dispatch(call) ? 1 : 0;
  batch.received = call.received;
  cut_stage(call, batch);
  return job;
}

// Where the stage lies, and what has room in it.
void Member::cut_stage(const towline_experts_batch& call, Batch& batch) const {
  const bool mirrors = proxy_ != nullptr;
  batch.stage_at = mirrors ? layout_.results_at() : layout_.slots_at();
  const auto half_of = [&](uint64_t memory) {
    return (mirrors ? memory / kAreas : memory) / 2 / kStageGrain * kStageGrain;
  };
  batch.half_bytes = half_of(bytes_);
  // In a dispatch a place is a token; in a combine, a token of each rank.
  const bool dispatch = is_dispatch(call);
  batch.row_bytes = rounded_up(dispatch ? batch.scales_in_row(call.topk) + call.scales * sizeof(uint32_t)
                                        : batch.weights_in_row(0) + call.topk * sizeof(float),
                               16);
  batch.masks_at = dispatch ? rounded_up(batch.count_at(call.ranks), kStageGrain) : 0;
  const uint64_t place_bytes = dispatch ? batch.row_bytes + sizeof(uint64_t) : call.ranks * batch.row_bytes;
  const uint64_t fixed = batch.masks_at + kStageGrain;
  const uint64_t mirrored_bytes = dispatch ? place_bytes : batch.row_bytes;
  const auto places_in = [&](uint64_t room, uint64_t each) {
    return room < fixed ? 0 : (room - fixed) / each;
  };
  uint64_t places = std::min<uint64_t>(places_in(batch.half_bytes, place_bytes), kMostTokens);
  if (mirrors)
    places = std::min({places, places_in(layout_.area_bytes, mirrored_bytes), layout_.used_entries()});
  // Memory is cut twice: to the grain of areas, and to that of halves.
  const auto memory_for = [&](uint64_t tokens) {
    const uint64_t stage = 2 * rounded_up(fixed + tokens * place_bytes, kStageGrain);
    if (!mirrors) return rounded_up(stage, grain_of(layout_.capacity));
    const uint64_t area =
        std::max({(stage + layout_.capacity - 1) / layout_.capacity, fixed + tokens * mirrored_bytes,
                  tokens * Layout::slot_bytes_of(kScaled)});
    return rounded_up(kAreas * layout_.capacity * rounded_up(area, kAreaGrain), grain_of(layout_.capacity));
  };
  if (places == 0)
    fail(Status::kInvalidArgument,
         "experts: a batch with tokens of {} bytes among {} ranks needs at least {} bytes of memory; rank {} "
         "has {}: open it with more, on every rank. It needs {} to go without rounds",
         call.token_bytes, call.ranks, memory_for(1), rank_, bytes_,
         memory_for(std::max(call.max_tokens, call.tokens)));
  batch.round_tokens = static_cast<uint32_t>(places);
  batch.rows_at =
      dispatch ? rounded_up(batch.masks_at + batch.round_tokens * sizeof(uint64_t), kStageGrain) : 0;
}

void Member::run_put(const Job& job, const towline_experts_batch& call, void* stream) {
  run(is_dispatch(call) ? Kernel::kBatchPut : Kernel::kBatchReturn, job, call.blocks, stream);
  run(Kernel::kBatchAwait, job, 1, stream);
}

void Member::run_rest(const Job& job, const towline_experts_batch& call, void* stream) {
  if (asks_for_counts(call)) run(Kernel::kBatchList, job, call.ranks, stream);
  run(is_dispatch(call) ? Kernel::kBatchPull : Kernel::kBatchSum, job, call.blocks, stream);
}

void Member::batch_round(Job job, const towline_experts_batch& call, uint32_t round, void* stream) {
  job.batch.shape = batch_shape(call, round, proxy_ != nullptr);
  job.batch.first = round * job.batch.round_tokens;
  if (round != 0 || call.phases != TOWLINE_EXPERTS_RECEIVE) run_put(job, call, stream);
  if (call.phases != TOWLINE_EXPERTS_SEND) run_rest(job, call, stream);
}

// Nothing of earlier batches is read any more, here or by ranks of the host.
void Member::end_batches() {
  if (recorded_)
    fail(Status::kUnsupported,
         "experts: a graph has recorded batches of rank {} within its host, and replays would use its memory "
         "as it was: connect ranks of other hosts before you record, or open another member",
         rank_);
  end_work();
  counted_.reset();
  command_now(Command::kAwaitReaders, 0, {in_batches_ & ~(uint64_t{1} << rank_), 0, 0});
  std::string readers;
  for (uint32_t rank = 0; rank < layout_.capacity; ++rank)
    if (__atomic_load_n(&report().reads[rank], __ATOMIC_ACQUIRE) != 0)
      readers += (readers.empty() ? "" : ", ") + std::to_string(rank);
  if (!readers.empty())
    fail(Status::kTimedOut,
         "experts: rank {} cannot be opened to other hosts, since rank {} did not say within {} ms that it "
         "has read the last batch: end the batch there, open it as well, or disconnect it, and try again",
         rank_, readers, timeout_ns_ / 1'000'000);
}

void Member::await_totals(towline_experts_batch& call) {
  const Report& heard = report();
  const uint64_t wait_ns = host_wait_ns(timeout_ns_);
  const Deadline end = Deadline::after(monotonic_now_ns(), wait_ns);
  for (uint32_t looks = 0; __atomic_load_n(&heard.ticket, __ATOMIC_ACQUIRE) != last_ticket_; ++looks) {
    if (looks < kLooksAtOnce) {
      std::this_thread::yield();
      continue;
    }
    if (const cuda::Code state = last_->state(); state != cuda::Moment::kBusy && state != 0)
      fail(Status::kIo, "experts: a kernel failed: {}", device_.code_text(state));
    if (end.passed(monotonic_now_ns()))
      fail(Status::kTimedOut,
           "experts: the GPU did not come to this dispatch within {} ms: work ahead of it in the stream has "
           "not ended",
           wait_ns / 1'000'000);
    std::this_thread::sleep_for(kTotalsLook);
  }
  unmasked_ = false;  // the stream is past that
  check_absent(call.ranks, false);
  call.received = static_cast<uint32_t>(heard.received);
  call.max_tokens = static_cast<uint32_t>(heard.most_tokens);
  for (uint32_t expert = 0; expert < call.experts; ++expert)
    call.received_per_expert[expert] = static_cast<int32_t>(heard.per_expert[expert]);
}

void Member::batch(towline_experts_batch& call, void* stream) {
  const bool records = check_stream(stream);
  check_batch(call);
  check_batch_ranks(call);
  check_batch_addresses(call);
  if (records && asks_for_counts(call))
    fail(Status::kInvalidArgument,
         "experts: a graph can't record a dispatch that counts, since the host waits in it: give the counts "
         "of an earlier one (a handle)");
  check_use(Use::kBatches);
  if (call.phases == TOWLINE_EXPERTS_RECEIVE)
    check_counted(call);
  else
    check_absent(call.ranks, records);
  Job job = batch_job(call);
  if (proxy_ != nullptr) {
    const Batch& cut = job.batch;
    const BatchRows rows{cut.stage_at,  cut.half_bytes,   cut.rows_at,
                         cut.row_bytes, cut.round_tokens, !is_dispatch(call)};
    if (proxy_->replaces(rows, records)) end_calls();
    job.batch.way = proxy_->prepare(rows, call.ranks, records);
  }
  use_ = Use::kBatches;
  in_batches_ |= ~uint64_t{0} >> (kMostRanks - call.ranks);
  counted_.reset();
  if (asks_for_counts(call))
    job.batch.ticket = call.phases == TOWLINE_EXPERTS_SEND ? ++last_ticket_ : last_ticket_;
  // The first round of a dispatch that counts is the SEND's; the host does not know yet whether there are more.
  const uint32_t rounds =
      call.phases == TOWLINE_EXPERTS_SEND
          ? 1
          : std::max(1u, (call.max_tokens + job.batch.round_tokens - 1) / job.batch.round_tokens);
  put_in_stream(records, stream, *last_, [&] {
    // Batches of one member are in order with one another, in whichever streams they are.
    if (!records) order_after_last(stream);
    for (uint32_t round = 0; round < rounds; ++round) batch_round(job, call, round, stream);
  });
  if (call.phases != TOWLINE_EXPERTS_SEND) return;
  await_totals(call);
  counted_ = call;
}

}  // namespace towline::collectives::experts
