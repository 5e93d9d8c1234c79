// Unpacks fragments on one GPU for all connections that land there. Frames are collected in a batch, and one launch
// moves all pieces of a batch.
//
//   a batch: free -> open (frames are added) -> launched -> ended -> free (each of its frames was told)
//
// A batch does not wait for data. The first look at one of its frames launches it, unless kMostUnderWay batches are
// under way already; then it takes what arrives until one of them has ended. The lists lie in pinned memory, and the
// end of a batch is a word there. Nothing is allocated after construction.
//
// Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "gpu/device.h"
#include "transports/cuda/piece_copier.h"
#include "transports/cuda/piece_writer.h"
#include "transports/cuda/settings.h"

namespace towline::cuda {

class Unpacker {
  struct Batch;

 public:
  static constexpr uint32_t kBatches = 4;
  static constexpr uint32_t kMostUnderWay = 2;
  static constexpr uint32_t kBatchPieces = 8192;
  static_assert(kBatchPieces >= kMostListPieces);

  // Throws Error.
  Unpacker(Device& device, uint32_t gpu, const Settings& settings);
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;
  ~Unpacker();  // waits for what is under way

  // The pieces of one frame; the unpacker is locked meanwhile. Nothing is added unless end() is called.
  class Frame {
   public:
    explicit Frame(Unpacker& unpacker) noexcept;
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;
    ~Frame() = default;

    // False: all batches are in use. The frame has to be copied in another way.
    [[nodiscard]] bool has_room() const noexcept { return batch_ != nullptr; }
    // What was looked up last for this batch: each allocation is looked up once for a batch.
    [[nodiscard]] Allocation& found() noexcept;
    // Where the frame's pieces are written.
    [[nodiscard]] PieceWriter begin() const noexcept;
    // from_host: some of the pieces are read from host memory. Which batch to look at.
    [[nodiscard]] uint32_t end(const PieceWriter& written, bool from_host) noexcept;

   private:
    const std::unique_lock<std::mutex> lock_;
    Batch* const batch_;
  };

  // 0: the frame's bytes are in their place; CopyQueue::kBusy; or why its batch failed. To be called for each frame
  // until it is not kBusy, and not again.
  [[nodiscard]] Code look(uint32_t batch, uint64_t now_ns) noexcept;
  // Instead of looks that are still due: returns when the GPU does nothing more for the frame.
  void leave(uint32_t batch) noexcept;

 private:
  enum class State : uint8_t { kFree, kOpen, kLaunched, kEnded };

  struct Batch {
    State state = State::kFree;
    uint32_t number = 0;
    uint32_t frames = 0;  // that were not told yet
    uint32_t count = 0;   // pieces
    uint64_t bytes = 0;
    uint64_t bits = 0;  // of all addresses and lengths
    uint64_t value = 0;
    uint64_t asked_ns = 0;  // when the queue's state was last looked at
    Code code = 0;
    bool from_host = false;
    Allocation found;
    CopyQueue::List list;
    Piece* pieces = nullptr;
  };

  Batch* open_batch() noexcept;
  void launch(Batch& batch) noexcept;
  void end(Batch& batch, Code code) noexcept;
  void note_ends() noexcept;
  void ask(Batch& batch, uint64_t now_ns) noexcept;

  const uint32_t blocks_;
  const uint32_t host_blocks_;
  const std::unique_ptr<CopyQueue> queue_;
  std::mutex mutex_;
  std::array<Batch, kBatches> batches_;
  Batch* open_ = nullptr;
  uint32_t under_way_ = 0;
  uint64_t last_value_ = 0;
};

// A backend's, by GPU. Any thread.
class Unpackers {
 public:
  // Throws Error.
  std::shared_ptr<Unpacker> take(Device& device, uint32_t gpu, const Settings& settings);

 private:
  std::mutex mutex_;
  std::map<uint32_t, std::weak_ptr<Unpacker>> unpackers_;
};

}  // namespace towline::cuda
