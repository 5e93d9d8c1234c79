#include "transports/cuda/unpacker.h"

#include <algorithm>
#include <utility>

#include "transports/cuda/work_list.h"

namespace towline::cuda {

namespace {

// Of a batch whose fragments lie in the GPU's own memory: 8 MiB in pieces of 4 KiB take so many, and a few
// microseconds. tuning.cuda.host_blocks holds where a fragment comes over the link to the host.
constexpr uint32_t kUnpackBlocks = 128;
constexpr uint32_t kUnpackThreads = 512;

uint32_t within_reserve(uint32_t blocks, uint32_t reserved) noexcept {
  return reserved != 0 ? std::min(blocks, reserved) : blocks;
}

uint32_t reserved_sms(Device& device, uint32_t gpu, const Settings& settings) {
  const bool reserves = settings.reserve.any() && !settings.after_default_stream;
  return reserves ? device.reserve(gpu, settings.reserve).sms : 0;
}

}  // namespace

Unpacker::Unpacker(Device& device, uint32_t gpu, const Settings& settings)
    : blocks_(within_reserve(kUnpackBlocks, reserved_sms(device, gpu, settings))),
      host_blocks_(within_reserve(settings.host_blocks, reserved_sms(device, gpu, settings))),
      queue_(device.make_queue(gpu, settings.after_default_stream, settings.reserve)) {
  for (uint32_t i = 0; i < kBatches; ++i) {
    Batch& batch = batches_[i];
    batch.number = i;
    batch.list = queue_->make_list(kBatchPieces * sizeof(Piece));
    batch.pieces = static_cast<Piece*>(batch.list.host);
  }
}

Unpacker::~Unpacker() {
  (void)queue_->drain();
  for (const Batch& batch : batches_) queue_->release_list(batch.list);
}

// Null: none is free. A full one goes at once, however many are under way.
Unpacker::Batch* Unpacker::open_batch() noexcept {
  if (open_ != nullptr && open_->count + kMostListPieces <= kBatchPieces) return open_;
  if (open_ != nullptr) launch(*open_);
  const auto free = std::find_if(batches_.begin(), batches_.end(),
                                 [](const Batch& batch) { return batch.state == State::kFree; });
  if (free == batches_.end()) return nullptr;
  free->state = State::kOpen;
  free->count = 0;
  free->bytes = free->bits = 0;
  free->from_host = false;
  return open_ = &*free;
}

// A batch that holds no frame may have been open for long, and memory may have come and gone meanwhile.
Unpacker::Frame::Frame(Unpacker& unpacker) noexcept : lock_(unpacker.mutex_), batch_(unpacker.open_batch()) {
  if (batch_ != nullptr && batch_->frames == 0) batch_->found.bytes = 0;
}

Allocation& Unpacker::Frame::found() noexcept { return batch_->found; }

PieceWriter Unpacker::Frame::begin() const noexcept {
  return PieceWriter(batch_->pieces + batch_->count, batch_->bytes);
}

uint32_t Unpacker::Frame::end(const PieceWriter& written, bool from_host) noexcept {
  PieceWriter::publish();
  batch_->count = static_cast<uint32_t>(written.at() - batch_->pieces);
  batch_->bytes = written.position();
  batch_->bits |= written.bits();
  batch_->from_host |= from_host;
  ++batch_->frames;
  return batch_->number;
}

void Unpacker::launch(Batch& batch) noexcept {
  open_ = nullptr;
  CopyJob job{};
  job.form = Form::kPieces;
  job.end = batch.bytes;
  job.pieces = batch.count;
  job.list = reinterpret_cast<uint64_t>(batch.list.host);
  job.chunks_per_piece = 1;
  job.threads = 32;
  if (!batch.from_host) job.block_threads = kUnpackThreads;
  job.aligned = (batch.bits & 15) == 0 ? 1 : 0;
  batch.value = ++last_value_;
  batch.asked_ns = 0;
  ++under_way_;
  const uint32_t blocks = useful_blocks(job, batch.from_host ? host_blocks_ : blocks_);
  const Code code = batch.count == 0 ? 0 : queue_->launch(job, blocks, batch.number, batch.value);
  batch.state = State::kLaunched;
  if (code != 0 || batch.count == 0) end(batch, code);
}

void Unpacker::end(Batch& batch, Code code) noexcept {
  batch.state = batch.frames == 0 ? State::kFree : State::kEnded;
  batch.code = code;
  --under_way_;
}

void Unpacker::note_ends() noexcept {
  for (Batch& batch : batches_)
    if (batch.state == State::kLaunched &&
        queue_->flag(batch.number).load(std::memory_order_acquire) == batch.value)
      end(batch, 0);
}

// Where the queue is idle the flag is there the next time.
void Unpacker::ask(Batch& batch, uint64_t now_ns) noexcept {
  if (batch.asked_ns == 0) batch.asked_ns = now_ns;
  if (now_ns < batch.asked_ns + kAskAfterNs) return;
  batch.asked_ns = now_ns;
  const Code code = queue_->state();
  if (code != 0 && code != CopyQueue::kBusy) end(batch, code);
}

Code Unpacker::look(uint32_t number, uint64_t now_ns) noexcept {
  const std::lock_guard lock(mutex_);
  Batch& batch = batches_[number];
  note_ends();
  if (batch.state == State::kOpen && under_way_ < kMostUnderWay) launch(batch);
  if (batch.state == State::kLaunched) ask(batch, now_ns);
  if (batch.state != State::kEnded) return CopyQueue::kBusy;
  if (--batch.frames == 0) batch.state = State::kFree;
  return batch.code;
}

void Unpacker::leave(uint32_t number) noexcept {
  const std::lock_guard lock(mutex_);
  Batch& batch = batches_[number];
  if (batch.state == State::kOpen) launch(batch);  // others' frames are in it, too
  if (batch.state == State::kLaunched) {
    const Code code = queue_->drain();
    note_ends();
    if (batch.state == State::kLaunched) end(batch, code);
  }
  if (--batch.frames == 0) batch.state = State::kFree;
}

std::shared_ptr<Unpacker> Unpackers::take(Device& device, uint32_t gpu, const Settings& settings) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Unpacker> unpacker = unpackers_[gpu].lock();
  if (unpacker == nullptr) unpackers_[gpu] = unpacker = std::make_shared<Unpacker>(device, gpu, settings);
  return unpacker;
}

}  // namespace towline::cuda
