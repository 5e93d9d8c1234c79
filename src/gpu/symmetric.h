// Symmetric memory on the host's side: every rank allocates a piece of GPU memory, ranks of one host exchange them
// once, and every rank maps all of them. Kernels get the addresses (towline/device/symmetric.cuh).
//
// Ranks of one process share pieces as they are. Processes of a host pass descriptors over Unix sockets, which
// need no privileges; the sockets stay open, so that a process that goes is noticed. A piece lives as long as any
// rank has it mapped, so ranks may leave, or die, in any order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/os/unique_fd.h"
#include "gpu/kernel_device.h"
#include "gpu/symmetric_wire.h"

namespace towline::cuda {

// The board on which ranks leave small values for one another.
struct Noticeboard {
  std::function<void(const std::string& key, std::span<const uint8_t> value)> set;     // throws Error
  std::function<std::vector<uint8_t>(const std::string& key, Deadline deadline)> get;  // waits; throws Error
};

class SymmetricMemory {
 public:
  // The start of the keys of memory that a communicator has for itself.
  static constexpr const char* kOwn = "gpu/";
  // Collective: returns when every rank has mapped the memory of all. Throws Error: kUnsupported if a rank is on
  // another host; kPeerLost, with its words, if another rank failed.
  // `words` are this rank's, which ranks of its process may use as long as they have its memory.
  SymmetricMemory(KernelDevice& device, uint32_t gpu, std::shared_ptr<SharedPiece> piece, uint64_t bytes,
                  std::shared_ptr<Words> words, uint32_t rank, uint32_t size, const Noticeboard& board,
                  Deadline deadline);
  // The same with a part of a piece, of any size. Keys on the board begin with `prefix`.
  struct Part {
    std::shared_ptr<SharedPiece> piece;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  SymmetricMemory(KernelDevice& device, uint32_t gpu, Part part, std::shared_ptr<Words> words, uint32_t rank,
                  uint32_t size, const Noticeboard& board, Deadline deadline, const std::string& prefix);
  // Tells the other ranks, which wait for this one's memory, that it failed before it had any: they fail with the reason.
  static void refuse(const Noticeboard& board, const std::string& prefix, uint32_t rank,
                     const std::string& reason) noexcept;
  SymmetricMemory(const SymmetricMemory&) = delete;
  SymmetricMemory& operator=(const SymmetricMemory&) = delete;
  ~SymmetricMemory();

  [[nodiscard]] uint64_t address(uint32_t rank) const noexcept {
    return pieces_[rank]->address() + offsets_[rank];
  }
  [[nodiscard]] uint64_t bytes(uint32_t rank) const noexcept { return bytes_[rank]; }
  // Null: of another process.
  [[nodiscard]] const Words* words(uint32_t rank) const noexcept { return words_[rank].get(); }
  // All ranks are threads of this process and use one GPU.
  [[nodiscard]] bool together() const noexcept { return together_; }
  // How many ranks use this rank's GPU.
  [[nodiscard]] uint32_t ranks_on_gpu() const noexcept { return ranks_on_gpu_; }
  // A rank whose process is gone, if any. Does not block.
  [[nodiscard]] std::optional<uint32_t> lost() noexcept;
  // lost() is not asked any more: closes the descriptors that it needs, three for each rank of another process.
  void stop_watching() noexcept;

 private:
  [[nodiscard]] PieceNotice describe(uint32_t gpu) const;
  void listen();
  static void check_instances(std::span<const PieceNotice> notices);
  template <class Step>
  void reach(uint32_t other, std::span<const PieceNotice> notices, Step&& step);
  void exchange(uint32_t gpu, const Noticeboard& board, Deadline deadline, const std::string& prefix);
  static void check_joined(uint32_t other, const Noticeboard& board, Deadline deadline,
                           const std::string& prefix);
  void end_together(const Noticeboard& board, Deadline deadline, const std::string& prefix);
  void swap(uint32_t gpu, std::span<const PieceNotice> notices, Deadline deadline);
  void send_to(uint32_t rank, const PieceNotice& notice, Deadline deadline);
  void receive(uint32_t gpu, std::span<const PieceNotice> notices, uint32_t missing, Deadline deadline);
  bool take_piece(uint32_t gpu, std::span<const PieceNotice> notices, UniqueFd& visitor);

  KernelDevice& device_;
  const uint32_t rank_;
  const uint32_t size_;
  std::vector<std::shared_ptr<SharedPiece>> pieces_;
  std::vector<uint64_t> offsets_;
  std::vector<uint64_t> bytes_;
  std::vector<std::shared_ptr<Words>> words_;
  std::vector<UniqueFd> sockets_;    // to ranks of other processes
  std::vector<UniqueFd> processes_;  // of these: readable once one is gone. Its children may hold its socket
  std::vector<UniqueFd> visitors_;   // theirs to this one
  UniqueFd listener_;
  std::string name_;
  uint64_t key_ = 0;
  bool together_ = true;
  uint32_t ranks_on_gpu_ = 0;
};

}  // namespace towline::cuda
