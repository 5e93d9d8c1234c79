// What operations of the tests' libnccl.so do once all of their ranks have come.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/nccl/nccl_api.h"

namespace towline::fake_nccl {

namespace nccl = collectives::nccl;

enum class Kind { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kSend, kReceive };

struct Reduction {
  int op = nccl::kSum;
  double factor = 1;
  bool scaled = false;
};

struct Operation {
  Kind kind;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
  int type = 0;
  Reduction reduction = {};
  int root = 0;  // or the peer
  bool done = false;
};

struct Meeting {
  std::vector<Operation*> ranks;
  int arrived = 0;
};

size_t bytes_of(int type);
void move(void* to, const void* from, size_t bytes);
// The ranks want the same.
bool alike(const Meeting& meeting);
void carry_out(const Meeting& meeting);

}  // namespace towline::fake_nccl
