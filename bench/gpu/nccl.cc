#include "nccl.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <stdexcept>

namespace bench::gpu {

namespace {
constexpr int kFloat = 7;
constexpr int kSum = 0;
}  // namespace

Nccl::Nccl(const std::string& path)
    : library_(dlopen(path.empty() ? "libnccl.so.2" : path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) throw std::runtime_error(fmt::format("NCCL's library (--nccl): {}", dlerror()));
}

template <class... Arguments>
void Nccl::call(const char* name, Arguments... arguments) const {
  auto* const function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
  if (function == nullptr) throw std::runtime_error(fmt::format("this NCCL has no {}", name));
  if (const int code = function(arguments...); code != 0)
    throw std::runtime_error(fmt::format("{}: error {}", name, code));
}

std::string Nccl::version() const {
  int number = 0;
  call("ncclGetVersion", &number);
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

NcclId Nccl::id() const {
  NcclId made{};
  call("ncclGetUniqueId", &made);
  return made;
}

NcclRank::NcclRank(const Nccl& nccl, const NcclId& id, int rank, int size) : nccl_(nccl), size_(size) {
  nccl_.call("ncclCommInitRank", &communicator_, size, id, rank);
}

NcclRank::~NcclRank() {
  try {
    nccl_.call("ncclCommDestroy", communicator_);
  } catch (const std::exception&) {  // the figures are there already
  }
}

void NcclRank::all_reduce(const float* in, float* out, size_t count, void* stream) {
  nccl_.call("ncclAllReduce", in, out, count, kFloat, kSum, communicator_, stream);
}

void NcclRank::all_gather(const float* in, float* out, size_t part, void* stream) {
  nccl_.call("ncclAllGather", in, out, part, kFloat, communicator_, stream);
}

void NcclRank::reduce_scatter(const float* in, float* out, size_t part, void* stream) {
  nccl_.call("ncclReduceScatter", in, out, part, kFloat, kSum, communicator_, stream);
}

void NcclRank::all_to_all(const float* in, float* out, size_t part, void* stream) {
  nccl_.call("ncclGroupStart");
  for (int peer = 0; peer < size_; ++peer) {
    const size_t at = static_cast<size_t>(peer) * part;
    nccl_.call("ncclSend", in + at, part, kFloat, peer, communicator_, stream);
    nccl_.call("ncclRecv", out + at, part, kFloat, peer, communicator_, stream);
  }
  nccl_.call("ncclGroupEnd");
}

}  // namespace bench::gpu
