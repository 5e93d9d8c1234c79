// The functions of NCCL's library that the harness calls, found at run time.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace bench::gpu {

struct NcclId {
  std::array<char, 128> bytes;
};

class Nccl {
 public:
  // `path` empty: libnccl.so.2 as the loader finds it. Throws if it is not there.
  explicit Nccl(const std::string& path);

  [[nodiscard]] std::string version() const;
  [[nodiscard]] NcclId id() const;

 private:
  friend class NcclRank;
  template <class... Arguments>
  void call(const char* name, Arguments... arguments) const;
  void* library_;
};

// One rank's side, on the GPU in use. Sums of float32, counted as NCCL counts them, on a stream.
class NcclRank {
 public:
  NcclRank(const Nccl& nccl, const NcclId& id, int rank, int size);
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;
  ~NcclRank();

  void all_reduce(const float* in, float* out, size_t count, void* stream);
  void all_gather(const float* in, float* out, size_t part, void* stream);
  void reduce_scatter(const float* in, float* out, size_t part, void* stream);
  void all_to_all(const float* in, float* out, size_t part, void* stream);

 private:
  const Nccl& nccl_;
  void* communicator_ = nullptr;
  int size_;
};

}  // namespace bench::gpu
