#include "contender.h"

namespace bench {

Json PairedContender::ask(Json request) {
  request["contender"] = name();
  return session_.target->ask(request);
}

void PairedContender::setup() { connect(ask({{"do", "setup"}})); }

void PairedContender::prepare(const Cell& cell, const BlockLists& lists) {
  cell_ = cell;
  lists_ = lists;
  ask({{"do", "prepare"}, {"op", cell.op_name()}, {"block", cell.block}, {"count", cell.count}});
  prepare_cell();
}

double PairedContender::run(std::uint64_t iterations) {
  // The first runs bring the working set into the caches (small cells) and wake the other side.
  const std::uint64_t warm_ups = cell_.bytes() <= (std::size_t{8} << 20) ? 3 : 1;
  if (target_serves()) ask({{"do", "serve"}, {"iterations", iterations + warm_ups}});
  for (std::uint64_t i = 0; i < warm_ups; ++i) run_once();
  const double start = now_s();
  for (std::uint64_t i = 0; i < iterations; ++i) {
    run_once();
    asm volatile("" ::: "memory");
  }
  const double elapsed = now_s() - start;
  if (target_serves()) session_.target->channel().receive();
  return elapsed;
}

void PairedContender::stamp_source(std::uint64_t epoch) {
  if (cell_.op == Op::kWrite) {
    stamp_blocks(local(), lists_.local, cell_.block, epoch);
  } else {
    ask({{"do", "stamp"}, {"epoch", epoch}});
  }
}

std::size_t PairedContender::verify(std::uint64_t epoch) {
  if (cell_.op == Op::kRead) return count_wrong_blocks(local(), lists_.local, cell_.block, epoch);
  return ask({{"do", "verify"}, {"epoch", epoch}})["wrong"].get<std::size_t>();
}

}  // namespace bench
